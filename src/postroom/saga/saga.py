"""Saga: steps with their compensations, declared in plain Python; started, signalled and aborted by producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from postroom.errors import InvalidMessage, InvalidSetting, SagaNotDecodable
from postroom.rules.saga_plan import Kind
from postroom.saga.data import MAX_DATA_BYTES, data_kind, from_json, to_json
from postroom.saga.decorators import StepDecorators
from postroom.saga.messages import checked_id, checked_tell, queue_of_saga, signal_message, start_message
from postroom.saga.recording import Recorder
from postroom.saga.steps import checked_name, positive_seconds
from postroom.settings import Settings

if TYPE_CHECKING:
    import uuid

    from postroom.message import Message
    from postroom.saga.context import SagaContext

    Id = str | int | uuid.UUID

D = TypeVar("D")


class SagaOptions(TypedDict, total=False):
    """What a saga can be told beside its name and its data."""

    deadline: float | None
    transactions: object
    max_data_bytes: int
    schema: str | None
    table_prefix: str | None
    notify: bool | None


class Saga(StepDecorators[D]):
    """A business transaction over several steps: if one fails, those before it are undone in reverse order.

    ``name`` identifies the saga in the database: keep it as long as instances exist. ``data`` is the class of what
    passes from step to step: a dataclass, msgspec Struct or pydantic model; by default any JSON. ``deadline`` is the
    number of seconds after which an instance that has not completed is undone. ``transactions`` opens what steps run
    in, as in a `Consumer`; by default, steps get an SQLAlchemy connection to the relay's database. Data, each result
    and each event have at most ``max_data_bytes`` of JSON. ``schema``, ``table_prefix`` and ``notify`` default to the
    settings. Raises `InvalidSetting`.
    """

    @overload
    def __init__(self: Saga[Any], name: str, *, data: None = None, **options: Unpack[SagaOptions]) -> None: ...

    @overload
    def __init__(self, name: str, *, data: type[D], **options: Unpack[SagaOptions]) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        data: Any = None,
        deadline: float | None = None,
        transactions: object = None,
        max_data_bytes: int = MAX_DATA_BYTES,
        schema: str | None = None,
        table_prefix: str | None = None,
        notify: bool | None = None,
    ) -> None:
        super().__init__(checked_name("saga", name, ""))
        self.queue = queue_of_saga(name)
        self.data_kind = data_kind(data)
        self.deadline = None if deadline is None else positive_seconds(f"the deadline of saga {name!r}", deadline)
        if transactions is not None and not hasattr(transactions, "begin") and not callable(transactions):
            raise InvalidSetting(
                f"transactions = {transactions!r} opens none: give an SQLAlchemy engine or sessionmaker (or their "
                "async forms), or a function that returns a context manager, whose end commits"
            )
        self.transactions = transactions
        if not max_data_bytes >= 1:
            raise InvalidSetting(f"max_data_bytes = {max_data_bytes!r} is not valid: give 1 or more")
        self.max_data_bytes = max_data_bytes
        settings = Settings.load(schema=schema, table_prefix=table_prefix, notify=notify)
        self.place = settings.schema, settings.table_prefix
        self._recorder = Recorder(settings)

    # ── what runs an instance asks ─────────────────────────────────────────────────────────────────────────────────

    def encode(self, data: object) -> bytes:
        """Data as JSON. Raises `PayloadNotEncodable` or `PayloadTooLarge`."""
        return to_json(data, f"the data of saga {self.name!r}", self.max_data_bytes)

    def _require_readable(self, encoded: bytes) -> None:
        """Refuse data of another form than its class: Python lets anybody put a text where a number belongs."""
        try:
            self.decode(encoded)
        except SagaNotDecodable as error:
            raise InvalidMessage(str(error)) from None

    def decode(self, data: bytes | None) -> D:
        """Data from JSON. Raises `SagaNotDecodable`."""
        decoded: D = from_json(data, self.data_kind, f"the data of saga {self.name!r}")
        return decoded

    def encode_result(self, step: str, result: object) -> bytes | None:
        """What a step returned as JSON; None for None. Raises `PayloadNotEncodable` or `PayloadTooLarge`."""
        if result is None:
            return None
        return to_json(result, f"the result of step {step!r}", self.max_data_bytes)

    def changed_data(self, before: bytes | None, context: SagaContext[Any]) -> bytes | None:
        """The data as JSON if the function changed it, else None.

        Raises `InvalidSetting` if a step of a group did: the others would not see it; `InvalidMessage` if the next step
        could not read it; also what `encode` raises.
        """
        after = self.encode(context.data)
        # Whoever wrote it may have had a class with fewer fields: a default that this code adds is no change.
        if after == before or after == self.encode(self.decode(before)):
            return None
        step = self.steps.get(context.step)
        if step is not None and step.group:
            raise InvalidSetting(
                f"step {step.name!r} changed the data, which is read-only in a group, because the steps of group "
                f"{step.group!r} run at the same time: return the value, and read it later with saga.result"
            )
        self._require_readable(after)
        return after

    # ── what producers call ────────────────────────────────────────────────────────────────────────────────────────

    def start_message(self, data: D, id: object = None, tell: object = None) -> Message:
        """The message that starts an instance. Raises `InvalidMessage`."""
        plan = self.plan
        if not plan:
            raise InvalidSetting(f"saga {self.name!r} has no step: add one with @saga.step or @saga.call")
        encoded = self.encode(data)
        self._require_readable(encoded)
        return start_message(self.name, id, plan, encoded, checked_tell(tell))

    def start(
        self, connection: object, data: D, *, id: Id | None = None, tell: tuple[SagaContext[Any], str] | None = None
    ) -> str:
        """Start an instance in the connection's open transaction, and return its id.

        It runs once the transaction has committed. Without ``id`` it gets a new one (UUIDv7). The same id with the same
        data is the same instance, and nothing is written. ``tell=(saga, "shipped")``, given by a step of another saga,
        signals that event to it when this instance ends, with its outcome and its data.

        Raises `InvalidMessage`, `IdempotencyConflict` (other data under the same id) or `UnusableConnection`; then
        nothing was written, and the transaction is still usable.
        """
        message = self.start_message(data, id, tell)
        return self._recorder.run(connection, "saga.start", self._recorder.start(message, self.deadline))

    async def astart(
        self, connection: object, data: D, *, id: Id | None = None, tell: tuple[SagaContext[Any], str] | None = None
    ) -> str:
        """`start` for an async connection."""
        message = self.start_message(data, id, tell)
        return await self._recorder.arun(connection, "saga.astart", self._recorder.start(message, self.deadline))

    def abort(self, connection: object, id: Id, *, by: str = "", reason: str = "") -> None:
        """Undo an instance from where it stands, in the connection's open transaction.

        A step that is running can no longer commit. ``by`` and ``reason`` are kept in the audit log. Raises
        `SagaNotFound`, `SagaSettled` if it has ended, is being undone already or has passed its pivot, or
        `UnusableConnection` (on PostgreSQL, a saga with a pivot in a transaction above READ COMMITTED); then nothing
        was written.
        """
        operation = self._recorder.abort(self.name, checked_id(id), by, reason)
        self._recorder.run(connection, "saga.abort", operation)

    async def aabort(self, connection: object, id: Id, *, by: str = "", reason: str = "") -> None:
        """`abort` for an async connection."""
        operation = self._recorder.abort(self.name, checked_id(id), by, reason)
        await self._recorder.arun(connection, "saga.aabort", operation)

    def signal(
        self,
        connection: object,
        id: Id,
        event: str,
        payload: object = None,
        *,
        message_id: uuid.UUID | str | None = None,
    ) -> None:
        """Bring an event to an instance, in the connection's open transaction.

        It only adds a message, so it waits for nobody; a relay passes it on. The instance may come to its wait later.
        With a ``message_id``, a repetition is the same signal. Raises `InvalidMessage`, also for an event that none of
        the waits declared here is for, or `UnusableConnection`; then nothing was written.
        """
        message = self._signal(id, event, payload, message_id)
        self._recorder.run(connection, "saga.signal", self._recorder.signal(message))

    async def asignal(
        self,
        connection: object,
        id: Id,
        event: str,
        payload: object = None,
        *,
        message_id: uuid.UUID | str | None = None,
    ) -> None:
        """`signal` for an async connection."""
        message = self._signal(id, event, payload, message_id)
        await self._recorder.arun(connection, "saga.asignal", self._recorder.signal(message))

    def _signal(self, id: object, event: str, payload: object, message_id: uuid.UUID | str | None) -> Message:
        waits = [step for step in self.steps.values() if step.kind is Kind.WAIT]
        known = sorted({step.event for step in waits})
        # A retired wait does not say for what: instances know that from the plan that they began with.
        if waits and event not in known and not any(step.retired for step in waits):
            raise InvalidMessage(
                f"saga {self.name!r} waits for no event {event!r}: it waits for {', '.join(known)}; a wait that only "
                f"older instances have belongs under @{self.name}.retired(kind='wait')"
            )
        return signal_message(self.name, id, event, payload, message_id=message_id, limit=self.max_data_bytes)

    def __repr__(self) -> str:
        return f"Saga({self.name!r})"
