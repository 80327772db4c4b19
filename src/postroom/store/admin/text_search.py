"""Search for a text in errors: patterns for LIKE."""

from __future__ import annotations

from postroom.rules.fingerprints import ELSE

_ESCAPE = "!"

LIKE_ERROR = "lower(d.error_message) LIKE :{} ESCAPE '" + _ESCAPE + "'"
ERROR_TEXT = (
    f"(lower(d.error_code) LIKE :error ESCAPE '{_ESCAPE}' OR lower(d.error_message) LIKE :error ESCAPE '{_ESCAPE}')"
)
"""The condition for a delivery `d` whose last error has the text of `containing` in its code or message."""


def containing(text: str) -> str:
    """The pattern of texts that contain this one, in whatever case."""
    return f"%{escaped(text.lower())}%"


def escaped(text: str) -> str:
    """A text in a pattern, where it stands for itself."""
    for special in (_ESCAPE, "%", "_"):
        text = text.replace(special, _ESCAPE + special)
    return text


def fingerprint_pattern(fingerprint: str | None) -> str | None:
    """The pattern that every message with this fingerprint fits. Others may too: compare what is found."""
    if fingerprint is None:
        return None
    return "%".join(map(escaped, fingerprint.lower().split(ELSE)))
