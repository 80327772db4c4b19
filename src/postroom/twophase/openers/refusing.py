"""What code inside a two-phase commit must not do with a participant's connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from postroom.errors import UnusableConnection, WrongMethod
from postroom.store.twophase.branches import Ended

if TYPE_CHECKING:
    from collections.abc import Callable


def refusal(name: str, what: str) -> UnusableConnection:
    """The error for code that ends one participant's part by itself."""
    return UnusableConnection(
        f"participant {name!r} commits and rolls back together with the others: leave out {what}, and raise an "
        "exception to roll back all"
    )


def refusing(name: str, what: str) -> Callable[..., NoReturn]:
    """A function that refuses to do it."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise refusal(name, what)

    return refuse


def require_open(*, broken_off: bool, closed: bool) -> None:
    """Raise `ConnectionAbortedError` if a line was broken off, `Ended` if the code has closed its connection."""
    if broken_off:
        raise ConnectionAbortedError("the connection was broken off")
    if closed:
        raise Ended


def only_async(name: str, given: object) -> WrongMethod:
    """The error for a participant that sync code cannot have."""
    return WrongMethod(
        f"participant {name!r} is given as {_kind(given)}, which is async: use `async with`, or `arecover()`"
    )


def only_sync(name: str, given: object) -> WrongMethod:
    """The error for a participant that async code cannot have."""
    return WrongMethod(f"participant {name!r} is given as {_kind(given)}, which is sync: use `with`, or give its URL")


def _kind(given: object) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"
