"""Operations with compensations, run in one process without a record: what was done is undone if a later one fails."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, runtime_checkable

from postroom.errors import InvalidSetting, NotCompensated, OperationFailed
from postroom.runtime.functions import awaited, check_function, check_sync, name_of, plain_result
from postroom.telemetry.tracebacks import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_log = logging.getLogger("postroom.compensation")
_USE_ARUN = "use `await operations.arun()`"


@runtime_checkable
class CompensatableOperation(Protocol):
    """An operation as an object. Its ``name``, an attribute or a method, is the class's name if it has none."""

    def execute(self) -> Any:
        """Do it. What it returns is passed to `compensate`."""

    def compensate(self, result: Any, /) -> Any:
        """Undo it."""


Pair: TypeAlias = tuple[Callable[[], Any], Callable[[Any], Any] | None]
"""A function, and the one that undoes it, which gets what the first returned; None if there is nothing to undo."""


class CompensatableOperations:
    """Runs operations in order. If one fails, those completed are compensated in reverse order.

    Each operation is an object with ``execute()``, ``compensate(result)`` and a ``name``, or a pair of functions. It is
    light: nothing is recorded, so if the process dies in the middle, what was done stays done. A saga survives that.
    The operation that failed is not compensated: it must leave nothing behind when it raises. Raises `InvalidSetting`
    for what is no operation.
    """

    def __init__(self, operations: Iterable[CompensatableOperation | Pair]) -> None:
        if not isinstance(operations, Iterable):
            raise InvalidSetting(f"the operations are of type {type(operations).__name__}: give a list of them")
        self._operations = [_operation(one, number) for number, one in enumerate(operations, start=1)]

    def run(self) -> list[Any]:
        """Execute all, and return what each returned.

        Raises `OperationFailed` from the operation's error after compensating. A compensation that fails is logged as
        critical, and the others still run. An interrupt (ctrl-C) compensates too, and is raised as it is.
        """
        for one in self._operations:
            check_sync(one.execute, _USE_ARUN)
            check_sync(one.compensate, _USE_ARUN)
        progress = _Progress()
        for operation in self._operations:
            try:
                progress.completed(operation, plain_result(operation.execute(), operation.execute, _USE_ARUN))
            except BaseException as error:  # noqa: BLE001 - `end` raises it
                progress.failed(operation, error)
                for done, result in progress.to_compensate():
                    with progress.compensating(done, result):
                        plain_result(done.compensate(result), done.compensate, _USE_ARUN)
                progress.end(operation, error)
        return progress.results

    async def arun(self) -> list[Any]:
        """`run` for operations that are async, or some of them; the others run in the event loop.

        If the task is cancelled, what was completed is compensated before the cancellation goes on.
        """
        progress = _Progress()
        for operation in self._operations:
            try:
                progress.completed(operation, await awaited(operation.execute()))
            except BaseException as error:  # noqa: BLE001 - `end` raises it
                progress.failed(operation, error)
                await _compensate(progress)
                progress.end(operation, error)
        return progress.results


async def _compensate(progress: _Progress) -> None:
    """Compensate in a task of its own, to the end even if this one is cancelled meanwhile."""

    async def all_of_them() -> None:
        for done, result in progress.to_compensate():
            with progress.compensating(done, result):
                await awaited(done.compensate(result))

    task = asyncio.create_task(all_of_them())
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            progress.interrupt = error
    task.result()


class _Progress:
    """How far one run has come. It logs each step, and raises at the end what must be raised."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.interrupt: BaseException | None = None
        """What ended the program or the task while compensating."""
        self._completed: list[_Operation] = []
        self._compensated: list[str] = []
        self._not_compensated: list[NotCompensated] = []

    def completed(self, operation: _Operation, result: Any) -> None:
        self.results.append(result)
        self._completed.append(operation)
        _log.info("operation completed: %s", operation.name)

    def failed(self, operation: _Operation, error: BaseException) -> None:
        count = len(self._completed)
        _log.error("operation failed: %s: %s; operations to compensate: %d", operation.name, shown(error), count)

    def to_compensate(self) -> Sequence[tuple[_Operation, Any]]:
        done = zip(self._completed, self.results, strict=True)
        return [(one, result) for one, result in done if one.compensate is not _nothing][::-1]

    @contextmanager
    def compensating(self, operation: _Operation, result: Any) -> Iterator[None]:
        """Around a compensation: what it raises is kept for the end, so that the rest is compensated too."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - an interrupt is raised at the end
            self._not_compensated.append(NotCompensated(operation.name, result, error))
            _log.critical("operation NOT compensated, undo it by hand: %s: %s", operation.name, shown(error))
            if isinstance(error, KeyboardInterrupt | SystemExit):
                self.interrupt = error
        else:
            self._compensated.append(operation.name)
            _log.info("operation compensated: %s", operation.name)

    def end(self, operation: _Operation, error: BaseException) -> NoReturn:
        """Raise `OperationFailed`; if the program or the task was interrupted, that, with a note."""
        failed = OperationFailed(operation.name, self._compensated, self._not_compensated)
        interrupt = self.interrupt if isinstance(error, Exception) else error
        if interrupt is None:
            raise failed from error
        interrupt.add_note(str(failed))
        raise interrupt


@dataclass(frozen=True, slots=True)
class _Operation:
    name: str
    execute: Callable[[], Any]
    compensate: Callable[[Any], Any]


def _nothing(_: Any) -> None:
    """The compensation of an operation that needs none."""


def _operation(given: object, number: int) -> _Operation:
    """The operation in one form. Raises `InvalidSetting`, which says which one of the list is wrong."""
    execute: Any
    compensate: Any
    if isinstance(given, CompensatableOperation) and not isinstance(given, type):
        named: Any = getattr(given, "name", None)
        name = (named() if callable(named) else named) or name_of(type(given))
        execute, compensate = given.execute, given.compensate
    elif isinstance(given, tuple) and len(given) == len(("execute", "compensate")):
        execute, compensate = given
        name = name_of(execute)
    else:
        kind = f"the class {given.__qualname__}" if isinstance(given, type) else f"of type {type(given).__name__}"
        raise InvalidSetting(
            f"operation {number} is {kind}: give an object with execute(), compensate(result) and a name, or a pair "
            "of functions (execute, compensate)"
        )
    _check(execute, f"what executes operation {number}", ())
    compensate = _nothing if compensate is None else compensate
    _check(compensate, f"what compensates operation {number}", ("result",))
    return _Operation(str(name), execute, compensate)


def _check(function: Any, role: str, arguments: tuple[str, ...]) -> None:
    check_function(function, role)
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        wanted = "one argument, what its operation returned" if arguments else "no arguments"
        raise InvalidSetting(f"{role}, {name_of(function)}{signature}, must take {wanted}") from None
