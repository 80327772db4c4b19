"""TwoPhaseCommit: declares who takes part in a transaction, and begins them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting
from postroom.rules.twophase_ids import checked_participant
from postroom.settings import Settings
from postroom.store.sql.names import Names
from postroom.store.twophase.log import TwoPhaseLog
from postroom.twophase.coordinator import Coordinator
from postroom.twophase.errands import Errand
from postroom.twophase.log_part import LogPart
from postroom.twophase.openers import opener_of
from postroom.twophase.parts import DatabaseParticipant, Participant
from postroom.twophase.recovery import recovery_of
from postroom.twophase.resources import LastPart, Resource
from postroom.twophase.rounds import adrive, drive
from postroom.twophase.transaction import Transaction

if TYPE_CHECKING:
    from types import TracebackType

    from postroom.twophase.findings import Recovered
    from postroom.twophase.lines import Opener

LONGEST = 24 * 3600
_RESOURCE = ("prepare", "commit", "abort")


class TwoPhaseCommit:
    """Transactions over several databases, which commit everywhere or nowhere, whatever crashes in between.

    ``participants``, by name: URLs, SQLAlchemy engines or sessionmakers, pools or functions that return connections,
    Django connections, or own resources with `prepare(id)`, `commit(id)` and `abort(id)`. ``log`` is where decisions
    are recorded, in Postroom's tables: a URL, an engine, or a participant's name. If it is a participant's database,
    that one need not prepare. ``last`` is one resource that cannot prepare, with `commit(id)` and, if possible,
    `abort(id)`. ``timeout``: seconds from the beginning until the decision; after that, recovery rolls back what is
    left. ``schema`` and ``table_prefix`` default to the settings. Raises `InvalidSetting`.
    """

    def __init__(
        self,
        log: object,
        participants: Mapping[str, object],
        *,
        last: object | None = None,
        timeout: float = 30,
        schema: str | None = None,
        table_prefix: str | None = None,
    ) -> None:
        _check(participants, timeout, last)
        settings = Settings.load(schema=schema, table_prefix=table_prefix)
        self.place = (settings.schema, settings.table_prefix)
        """Schema and table prefix."""
        Names.of("postgresql", *self.place)  # raises for an invalid identifier
        self.timeout = timeout
        self.last = last
        self.resources: dict[str, object] = {}
        """Users' own participants, by name."""
        self.openers: dict[str, Opener] = {}
        """Those that are databases, by name."""
        for name, given in participants.items():
            if _has(given, *_RESOURCE):
                self.resources[checked_participant(name)] = given
            else:
                self.openers[checked_participant(name)] = opener_of(given, name)
        self.participants = dict(participants)
        """As they were given."""
        self.holder = _holder(log, participants, self.openers)
        self.log = self.openers[self.holder] if self.holder is not None else opener_of(log, "log")
        self._current: Transaction | None = None

    def begin(self) -> Transaction:
        """A transaction: ``with transfers.begin() as transaction:``, or ``async with``. Any number at the same time."""
        return Transaction(self._coordinator)

    def recover(self) -> Recovered:
        """Finish what crashed transactions of this log have left behind, as far as it is possible now."""
        return drive(recovery_of([self], asynchronous=False).recover())

    async def arecover(self) -> Recovered:
        """`recover` for async code."""
        return await adrive(recovery_of([self], asynchronous=True).recover())

    async def scope(self) -> str:
        """What the ids of this log's branches have in common."""
        return await Errand(self.log, lambda line: TwoPhaseLog(self.names(line.dialect)).scope()).arun()

    def names(self, dialect: str) -> Names:
        """Postroom's tables in a database of this dialect."""
        return Names.of(dialect, *self.place)

    def close(self) -> None:
        """Close the connections that were made from URLs. The object can still be used."""
        for opener in self._openers():
            opener.close()

    async def aclose(self) -> None:
        """`close` for async code."""
        for opener in self._openers():
            await opener.aclose()

    def __enter__(self) -> Transaction:
        transaction = self._entered()
        try:
            return transaction.__enter__()
        except BaseException:
            self._current = None
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._left().__exit__(kind, error, traceback)
        finally:
            self.close()

    async def __aenter__(self) -> Transaction:
        transaction = self._entered()
        try:
            return await transaction.__aenter__()
        except BaseException:
            self._current = None
            await self.aclose()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._left().__aexit__(kind, error, traceback)
        finally:
            await self.aclose()

    def _entered(self) -> Transaction:
        if self._current is not None:
            raise InvalidSetting(
                "this TwoPhaseCommit is in use: for several transactions at a time, enter `begin()` of it each time"
            )
        self._current = self.begin()
        return self._current

    def _left(self) -> Transaction:
        current, self._current = self._current, None
        if current is None:
            raise InvalidSetting("this TwoPhaseCommit was not entered: use `with` or `async with`")
        return current

    def _openers(self) -> list[Opener]:
        return [*self.openers.values(), *([] if self.holder is not None else [self.log])]

    def _coordinator(self, asynchronous: bool) -> Coordinator:  # noqa: FBT001 - the only thing it is about
        participants: dict[str, Participant] = {}
        for name in self.participants:
            if name in self.resources:
                participants[name] = Resource(name, self.resources[name], asynchronous=asynchronous)
            else:
                opener = self.openers[name]
                participants[name] = DatabaseParticipant(name, opener, self.names, asynchronous=asynchronous)
        return Coordinator(
            LogPart(self.log, self.names, asynchronous=asynchronous),
            participants,
            timeout=self.timeout,
            holder=self.holder,
            last=None if self.last is None else LastPart(self.last, asynchronous=asynchronous),
        )


def _check(participants: object, timeout: object, last: object | None) -> None:
    """Raise `InvalidSetting` for what no transaction could use."""
    if not isinstance(participants, Mapping) or not participants:
        kind = "empty" if not participants else f"a {type(participants).__name__}"
        raise InvalidSetting(f"participants is {kind}: give them by name, as in participants={{'bank': BANK}}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST:
        raise InvalidSetting(f"timeout = {timeout!r} is not valid: give seconds, more than 0, up to {LONGEST}")
    for name, given in participants.items():
        if isinstance(given, type) and _has(given, *_RESOURCE):
            raise InvalidSetting(f"participant {name!r} is given as a class: give an object, {given.__name__}(…)")
    if isinstance(last, type) or (last is not None and not _has(last, "commit")):
        raise InvalidSetting(f"last = {last!r} cannot take part: give an object with commit(id)")


def _has(given: object, *methods: str) -> bool:
    return all(callable(getattr(given, method, None)) for method in methods)


def _holder(log: object, participants: Mapping[str, object], openers: Mapping[str, Opener]) -> str | None:
    """The participant that has the log: the one that it names, or the one that is given in the same way."""
    if isinstance(log, str) and log in openers:
        return log
    if isinstance(log, str) and ":" not in log:  # with one it may be a URL and hold a password: it is not shown
        raise InvalidSetting(f"log = {log!r} is no participant that is a database: give one's name, or a URL")
    return next((name for name in openers if _same(participants[name], log)), None)


def _same(one: object, other: object) -> bool:
    options = getattr(one, "kw", None)
    engine = options.get("bind") if isinstance(options, dict) else None  # a sessionmaker's
    return one is other or (isinstance(one, str) and one == other) or (engine is not None and engine is other)
