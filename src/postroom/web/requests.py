"""A request as the idempotency middleware sees it, whichever interface it came by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def _no_route() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Request:
    """What is known before the body is read. Functions that choose scope, operation or routes are handed one."""

    method: str
    path: str
    """Decoded, without the place where the application is mounted."""
    target: str
    """The whole path as it was sent."""
    query: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    """Pairs, their names in lower case."""
    raw: Any = field(repr=False)
    """The ASGI scope, the WSGI environ or Django's request."""
    find_route: Callable[[], str] = field(default=_no_route, repr=False)
    """Asks the framework for the path's template, as ``/orders/{id}``; empty where it is not known."""
    other_paths: tuple[str, ...] = ()
    """What else the framework may take for the path, where it is not clear where the application is mounted."""
    told_by_server: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names and values by which the server itself tells whose request it is, such as its client's certificate."""

    def values(self, name: str) -> list[str]:
        """The values of a header, one for each time that it was sent."""
        return [value for each, value in self.headers if each == name]

    def header(self, name: str) -> str | None:
        """A header's value, given its name in lower case; None where it was not sent."""
        found = self.values(name)
        return ", ".join(found) if found else None

    @property
    def content_type(self) -> str:
        """Without parameters, in lower case."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def announced_bytes(self) -> int | None:
        """The length of the body, as far as the client told."""
        told = self.header("content-length") or ""
        return int(told) if told.isascii() and told.isdecimal() and len(told) < _DIGITS else None


_DIGITS = 19
