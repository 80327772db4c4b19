"""Operations as steps: a generator yields SQL and receives rows, and a thin driver, sync or async, does the I/O.

So each operation is written once and runs on every kind of connection, in the caller's transaction or our own.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

ParamStyle = Literal["qmark", "format", "numeric_dollar"]
Row = tuple[Any, ...]
T = TypeVar("T")
Yielded = TypeVar("Yielded")
Sent = TypeVar("Sent")


class Query(msgspec.Struct, frozen=True, gc=False):
    """One statement, with parameters written ``:name``."""

    text: str
    params: Mapping[str, Any] = {}
    script: bool = False
    """One statement or several, without parameters and without rows to return."""


class Result(msgspec.Struct, frozen=True, gc=False):
    """What a statement returned."""

    rows: Sequence[Row]
    changed: int = -1
    """How many rows it inserted, updated or deleted. Only the drivers of MySQL and SQLite say so."""


Steps = Generator[Query, Result, T]


class Rendered(NamedTuple):
    """A statement in a driver's parameter style, and the order of its parameters."""

    text: str
    order: tuple[str, ...]


_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)")  # not the second colon of a ::cast


_LONGEST_KEPT = 10_000  # characters: statements for thousands of rows are long, and rarely repeated


def render(text: str, style: ParamStyle) -> Rendered:
    """The statement in this parameter style."""
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
    """Run an operation to its end. A statement's error is raised where the operation yielded it."""
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
