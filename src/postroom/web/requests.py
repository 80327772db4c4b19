"""A request as the idempotency middleware sees it, from ASGI, WSGI or Django."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def _no_route() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Request:
    """What is known before the body is read. Options that are functions, such as ``scope``, get one."""

    method: str
    path: str
    """Decoded, without the prefix at which the application is mounted."""
    target: str
    """The whole path, as it was sent."""
    query: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    """Pairs of names, in lower case, and values."""
    raw: Any = field(repr=False)
    """The ASGI scope, the WSGI environ or Django's request."""
    find_route: Callable[[], str] = field(default=_no_route, repr=False)
    """Asks the framework for the path's template, such as ``/orders/{id}``; empty if unknown."""
    other_paths: tuple[str, ...] = ()
    """What else the framework may take for the path, if it is not clear where the application is mounted."""
    told_by_server: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names and values from the server itself that tell whose request it is, such as the client's certificate."""

    _by_name: dict[str, list[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sort the headers by their names, once for all who look."""
        found: dict[str, list[str]] = {}
        for name, value in self.headers:
            found.setdefault(name, []).append(value)
        object.__setattr__(self, "_by_name", found)

    def values(self, name: str) -> list[str]:
        """The values of a header, one for each time that it was sent."""
        return self._by_name.get(name, [])

    def header(self, name: str) -> str | None:
        """A header's value, given its name in lower case; None if it was not sent."""
        found = self.values(name)
        return ", ".join(found) if found else None

    @property
    def content_type(self) -> str:
        """Without parameters, in lower case."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def announced_bytes(self) -> int | None:
        """The length of the body, if the client announced a valid one."""
        told = self.header("content-length") or ""
        return int(told) if told.isascii() and told.isdecimal() and len(told) < _DIGITS else None


_DIGITS = 19
