"""Names that the outside gives us, as names that every database can hold and tell apart."""

import hashlib
import re

LONGEST = 255
_UNSTORABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def identity(text: str) -> str:
    """Return an id or key of any sender as one of at most 255 characters, different for different ones.

    It is the same text wherever that can be stored and is unique in every database; else a hash of it.
    """
    can_be_stored = 0 < len(text) <= LONGEST and not _UNSTORABLE.search(text) and not text.endswith(" ")
    return text if can_be_stored else _hash(text)


def label(text: str) -> str | None:
    """Return a text for people, as a topic or a type, cut to what can be stored; None if nothing is left of it."""
    return _UNSTORABLE.sub("", text)[:LONGEST] or None


def line(text: str) -> str:
    """Return a header's value without what cannot be stored."""
    return _UNSTORABLE.sub("", text)


def _hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
