"""One call of a user's function, and how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Hashable


class Call:
    """One call of a user's function with what goes around it, such as a transaction; and how far it has come."""

    def __init__(self, *, is_async: bool, timeout: float, subjects: frozenset[Hashable]) -> None:
        """`subjects`: what it works on. No other call with one of them begins while this one goes on too long."""
        self.is_async = is_async
        self.timeout = timeout
        self.subjects = subjects
        self.is_late = False
        """Whether its time is up: then nothing more is called, and nothing written."""
        self.has_ended = False
        """Whether nothing of it goes on any more."""
        self.is_in_function = False
        """Whether the function has been called and has not returned: what is raised then comes from it."""
        self.has_returned = False
        """Whether the function has been called and has returned."""
        self.alone: asyncio.Lock | None = None
        """What it holds so that no other call goes on beside it."""

    def again(self) -> Self:
        """The same call once more, after this one has failed."""
        raise NotImplementedError

    @property
    def may_be_repeated(self) -> bool:
        """Whether it is called again at once if it has lost its connection."""
        return not self.is_in_function

    def in_function(self) -> _InFunction:
        """Wrap the user's own code. If that raises, `is_in_function` stays true."""
        return _InFunction(self)

    def check_time(self) -> None:
        """Raise `TimeoutError` if the call is late, so that its transaction rolls back."""
        if self.is_late:
            raise TimeoutError


class _InFunction:
    """See `Call.in_function`. A generator would cost more than most functions do."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._call.is_in_function = True

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None:
            self._call.is_in_function = False
            self._call.has_returned = True
