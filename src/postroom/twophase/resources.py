"""Users' own resources in a two-phase commit: those that prepare, and the one that cannot."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroom.errors import WrongMethod
from postroom.rules import twophase_plan as plan
from postroom.rules.twophase_ids import LAST, gid
from postroom.rules.twophase_plan import Abilities
from postroom.twophase.parts import Part, Participant, State
from postroom.twophase.rounds import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from postroom.twophase.rounds import Answer


class Resource(Participant):
    """A user's own resource: an object with `prepare`, `commit` and `abort`, each called with the branch's id."""

    def __init__(self, name: str, given: Any, *, asynchronous: bool) -> None:
        self.name = name
        self.given = given
        self._asynchronous = asynchronous
        _usable(given, ("prepare", "commit", "abort"), asynchronous=asynchronous)
        self.abilities = Abilities(can_list=hasattr(given, "in_doubt"), can_commit_alone=False)

    def begin(self, scope: str, tx: str, seconds: float, *, prepares: bool) -> Any:
        """Name its branch. The code inside may give it work for that, and so it hears of every end."""
        del seconds, prepares
        self.branch = gid(scope, tx, self.name)
        self.state = State.BEGUN

    def prepare(self) -> Any:
        """Have it promise to commit."""
        return called(self.given.prepare, self.branch, asynchronous=self._asynchronous)

    def commit(self) -> Any:
        """Have it keep its promise."""
        return called(self.given.commit, self.branch, asynchronous=self._asynchronous)

    def roll_back(self) -> Any:
        """Have it abort, whether it has prepared or not."""
        return called(self.given.abort, self.branch, asynchronous=self._asynchronous)


class LastPart(Part):
    """The resource that cannot prepare: when all others are ready, it does its work, and that decides."""

    name = LAST

    def __init__(self, given: Any, *, asynchronous: bool) -> None:
        self._given = given
        self._asynchronous = asynchronous
        _usable(given, ("commit", "abort"), asynchronous=asynchronous)
        self.can_abort = hasattr(given, "abort")
        self.identity = f"{_module(type(given))}.{type(given).__qualname__}"
        """For the log: no recovery must ask another one, which would deny that it has done anything."""

    def commit(self, tx: str) -> Any:
        """Have it do its work."""
        return called(self._given.commit, tx, asynchronous=self._asynchronous)

    def abort(self, tx: str) -> Any:
        """True: it never happens. False: it has happened."""
        return called(self._given.abort, tx, asynchronous=self._asynchronous)


def aborted(answer: Answer) -> plan.Answer:
    """What a last resource said when it was told to abort."""
    if answer.error is not None or not isinstance(answer.value, bool):
        return plan.Answer.LOST
    return plan.Answer.YES if answer.value else plan.Answer.NO


def _module(cls: type) -> str:
    """The module of a class, also in the program that is started from it, where its name is `__main__`."""
    if cls.__module__ != "__main__":
        return cls.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)  # by `python -m`
    if spec is not None:
        return str(spec.name)
    return Path(getattr(main, "__file__", None) or cls.__module__).stem


def called(function: Callable[..., Any], *args: Any, asynchronous: bool) -> Any:
    """Call a user's function; in an async transaction a sync one in a thread, so that it holds nobody up."""
    if asynchronous:
        return _awaited(function, args)
    result = function(*args)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise WrongMethod(f"{function!r} is async: use `async with` for the transaction, and `arecover`")
    return result


async def _awaited(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    is_async = inspect.iscoroutinefunction(function)
    result = function(*args) if is_async else await in_thread(function, *args)
    return await result if inspect.isawaitable(result) else result


def _usable(given: object, methods: Iterable[str], *, asynchronous: bool) -> None:
    """Raise `WrongMethod` for an async function in a sync transaction, before anything depends on it."""
    for method in methods:
        if not asynchronous and inspect.iscoroutinefunction(getattr(given, method, None)):
            raise WrongMethod(f"{type(given).__name__}.{method} is async: use `async with` for the transaction")
