"""Names that the outside gives us, as names that every database can hold and tell apart."""

import hashlib
import re

LONGEST = 255
LEDGER = "postroom-ledger"
"""The header of a message that belongs to a ledger entry: scope, key and digest, as JSON. It is not sent."""
RESERVED_HEADERS = "postroom-"
"""How the headers begin that Postroom makes itself. Programs in plain SQL can give none that does."""
RESERVED = "postroom:"
"""How the idempotency keys begin that Postroom makes itself; nobody else may give one that does."""
OURS = "postroom"
"""The source that a relay names unless it is told another."""
PARKED = f"{RESERVED}parked:"
_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNSTORABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def identity(text: str) -> str:
    """Return an id or key of any sender as one of at most 255 characters, different for different ones.

    It is the same text wherever that can be stored and is unique in every database; else a hash of it.
    """
    can_be_stored = 0 < len(text) <= LONGEST and not _UNSTORABLE.search(text) and not text.endswith(" ")
    return text if can_be_stored else _hash(text)


def origin(source: str | None, id: str, topic: str) -> str:
    """What a received message is known by: its source and its id; where it names no source, its topic and its id.

    The UUIDs of a relay that has no source of its own stand for themselves. At most 255 characters, and different for
    different ones: a source or topic ends at the first space, for its own are escaped.
    """
    if source == OURS and _UUID.fullmatch(id):
        return id
    place = topic if source is None else source
    escaped = place.replace("%", "%25").replace(" ", "%20")
    return identity(f"{' ' if source is None else ''}{escaped} {id}")


def parked_key(consumer: str, dedup_id: str) -> str:
    """The idempotency key of a message that a consumer has parked, by what the message is known by."""
    length = len(consumer)  # or a consumer a:b with the id c would be a consumer a with the id b:c
    rest = f"{length}:{consumer}:{dedup_id}"
    key = f"{PARKED}{rest}"
    return key if identity(key) == key else f"{PARKED}{_hash(rest)}"


def is_ledger_header(name: str) -> bool:
    """Whether a header would be taken for the ledger's by anyone who does not mind case, spaces and underscores."""
    return name.strip().casefold().replace("_", "-") == LEDGER


def label(text: str) -> str | None:
    """Return a text for people, as a topic or a type, cut to what can be stored; None if nothing is left of it."""
    return _UNSTORABLE.sub("", text)[:LONGEST] or None


def readable(text: str) -> str:
    """Return a text with the bytes in it that were no UTF-8, and are lone surrogates, in hexadecimal."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that never were bytes
        raw = text.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "backslashreplace")


def line(text: str) -> str:
    """Return a header's value without what cannot be stored."""
    return _UNSTORABLE.sub("", text)


def _hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
