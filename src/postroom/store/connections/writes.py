"""Finds out whether an operation has stored anything, as a sign that a database writes again that did not."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from postroom.store.sql.steps import Query, Result, Steps

T = TypeVar("T")


class Writes:
    """What an operation is seen to have stored. One that changes no row succeeds on a full disk, too."""

    def __init__(self) -> None:
        self.any = False

    def noted(self, steps: Steps[T]) -> Steps[T]:
        """The same operation; what it stores is noted."""
        try:
            query = next(steps)
            while True:
                try:
                    result = yield query
                except Exception as error:  # noqa: BLE001 - handed to the operation, which re-raises what it cannot handle
                    query = steps.throw(error)
                else:
                    self.any = self.any or _stored(query, result)
                    query = steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # a generator's return value is untyped in StopIteration


def _stored(query: Query, result: Result) -> bool:
    verb = query.text.split(None, 1)[0].upper()
    return verb == "INSERT" or (verb != "SELECT" and bool(result.rows))
