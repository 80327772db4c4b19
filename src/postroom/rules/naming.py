"""Names that the outside gives us, as names that every database can hold and tell apart."""

import hashlib
import re
from fnmatch import translate
from functools import lru_cache

LONGEST = 255
LONGEST_QUEUE = 64
_UNSTORABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def handler_queue(consumer: str) -> str:
    """Return the queue in which a consumer's messages are parked: its name, or a hash of one that is too long."""
    return _short(f"handler:{consumer}", LONGEST_QUEUE)


def identity(text: str) -> str:
    """Return an id or key of any sender as one of at most 255 characters, different for different ones.

    It is the same text wherever that can be stored and is unique in every database; else a hash of it.
    """
    if text and not _UNSTORABLE.search(text) and not text.endswith(" "):
        return _short(text, LONGEST)
    return _hash(text)


def label(text: str) -> str | None:
    """Return a text for people, as a topic or a type, cut to what can be stored; None if nothing is left of it."""
    return _UNSTORABLE.sub("", text)[:LONGEST] or None


def line(text: str) -> str:
    """Return a header's value without what cannot be stored."""
    return _UNSTORABLE.sub("", text)


def fits(pattern: str, topic: str) -> bool:
    """Tell whether the topic fits the pattern, in which ``*`` stands for any characters."""
    return pattern == topic or ("*" in pattern and _expression(pattern).fullmatch(topic) is not None)


@lru_cache(maxsize=1024)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(
        translate("*".join(re.sub(r"[?\[\]]", lambda one: f"[{one[0]}]", part) for part in pattern.split("*")))
    )


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 33]}~{_hash(text)[-32:]}"


def _hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
