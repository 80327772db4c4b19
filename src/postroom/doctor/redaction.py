"""Keep secrets out of a report, whatever a driver or a server quotes in its errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOGIN = re.compile(r"://([^/?#]*)@")
_SECRET = re.compile(r"(?i)pass|secret|token|key$")
HIDDEN = "***"
LEAST = 4
"""Characters of a secret. What is shorter occurs in ordinary words, and guards nothing."""


class Redaction:
    """Replaces the secrets of these URLs wherever they occur."""

    def __init__(self, urls: Iterable[str]) -> None:
        found = {secret for url in urls for secret in _secrets(url) if len(secret) >= LEAST}
        each = "|".join(re.escape(secret) for secret in sorted(found, key=len, reverse=True))
        self._secrets = re.compile(rf"(?<!\w)(?:{each})(?!\w)") if found else None

    def text(self, text: str) -> str:
        """The text in one line, without secrets."""
        return " ".join((self._secrets.sub(HIDDEN, text) if self._secrets else text).split())

    def value(self, value: object) -> object:
        """A figure, or a list or table of them, without secrets."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.text(str(name)): self.value(one) for name, one in value.items()}
            case Sequence():
                return [self.value(one) for one in value]
            case _:
                return value


def _secrets(url: str) -> set[str]:
    found: set[str] = set()
    for login in _LOGIN.finditer(url):
        user, colon, password = login[1].partition(":")
        found |= {password, unquote(password)} if colon else {user, unquote(user)} if url.startswith("nats") else set()
    for name, value in parse_qsl(url.partition("?")[2]):
        if _SECRET.search(name):
            found.add(value)
    return found - {""}
