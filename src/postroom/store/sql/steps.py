"""Operations as steps: a generator yields SQL and receives rows, and a thin driver, sync or async, does the I/O.

So each operation is written once and runs on every connection kind, in the caller's transaction or in our own.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

ParamStyle = Literal["qmark", "format", "numeric_dollar"]
Row = tuple[Any, ...]
T = TypeVar("T")
Yielded = TypeVar("Yielded")
Sent = TypeVar("Sent")


class Query(NamedTuple):
    """One statement, with parameters written ``:name``."""

    text: str
    params: Mapping[str, Any] = {}
    script: bool = False
    """It is one statement or several, with no parameters and no rows to give."""


class Result(NamedTuple):
    """What a statement gave."""

    rows: Sequence[Row]


Steps = Generator[Query, Result, T]


class Rendered(NamedTuple):
    """A statement in a driver's own parameter style, and which parameter goes where."""

    text: str
    order: tuple[str, ...]


_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)")  # not the second colon of a ::cast


_LONGEST_KEPT = 10_000  # characters: statements for thousands of rows are big, and rarely come again


def render(text: str, style: ParamStyle) -> Rendered:
    """The statement as a driver of this parameter style takes it."""
    return _rendered(text, style) if len(text) <= _LONGEST_KEPT else _rendered.__wrapped__(text, style)


@lru_cache(maxsize=512)
def _rendered(text: str, style: ParamStyle) -> Rendered:
    order: list[str] = []
    numbers: dict[str, int] = {}

    def placeholder(match: re.Match[str]) -> str:
        name = match[1]
        if style == "numeric_dollar":
            if name not in numbers:
                order.append(name)
                numbers[name] = len(order)
            return f"${numbers[name]}"
        order.append(name)
        return "?" if style == "qmark" else "%s"

    escaped = text.replace("%", "%%") if style == "format" else text
    return Rendered(_PARAMETER.sub(placeholder, escaped), tuple(order))


def run(steps: Generator[Yielded, Sent, T], execute: Callable[[Yielded], Sent]) -> T:
    """Push an operation to its end. A statement's error is raised where the operation yielded it."""
    try:
        query = next(steps)
        while True:
            try:
                result = execute(query)
            except Exception as error:  # noqa: BLE001 - handed to the operation, which re-raises what it cannot handle
                query = steps.throw(error)
            else:
                query = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's return value is untyped in StopIteration


async def arun(steps: Generator[Yielded, Sent, T], execute: Callable[[Yielded], Awaitable[Sent]]) -> T:
    """The same with an async connection."""
    try:
        query = next(steps)
        while True:
            try:
                result = await execute(query)
            except Exception as error:  # noqa: BLE001 - handed to the operation, which re-raises what it cannot handle
                query = steps.throw(error)
            else:
                query = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's return value is untyped in StopIteration
