"""The exceptions that Postroom raises, all derived from `PostroomError`.

::

    PostroomError
    ├── InvalidMessage          (ValueError)  a field of a message is wrong; nothing was written
    │   ├── PayloadTooLarge                   the payload exceeds the size limit
    │   └── PayloadNotEncodable               the payload cannot become JSON, or what its schema says
    ├── PayloadNotDecodable     (ValueError)  a payload is not what its content type says, or the handler expects
    │   ├── UnknownVersion                    a message holds a version of its event that the program cannot read
    │   ├── UnknownSchema                     a message names a schema that the schema registry does not have
    │   └── SagaNotDecodable                  a saga's data, result or event is not what the code expects
    ├── Refused                               raised by a user's function: the effect will never happen
    ├── SagaNotFound            (LookupError) there is no saga with this id
    ├── SagaSettled                           a saga can no longer be aborted
    ├── ReplayRefused                         a message is not one that can be replayed
    ├── SagaActRefused                        what an operator wants does not fit the saga's state
    ├── RetryExhausted                        a function failed as often as its retry policy allows
    ├── OperationFailed                       an operation failed; those before it were compensated
    ├── TransactionAborted                    a two-phase commit was rolled back by all participants
    ├── TransactionInDoubt                    whether a two-phase commit was decided is not known yet
    ├── TransactionNotFound     (LookupError) there is no two-phase commit with this id
    ├── TransactionActRefused                 what an operator wants does not fit the two-phase commit's state
    ├── CdcActRefused                         what an operator wants does not fit how the stream stands
    ├── IdempotencyConflict                   the idempotency key belongs to another message
    ├── DuplicateMessage                      a message with this id is already there
    ├── InvalidEntry            (ValueError)  a ledger entry's key, scope, digest or response is wrong
    ├── LeaseLost                             a keyed request no longer belongs to this run: roll back
    ├── MessageNotFound         (LookupError) there is no message, or no dead letter, with this id
    ├── UnusableConnection                    the connection cannot be used
    │   ├── UnsupportedConnection (TypeError) not a kind of connection that Postroom knows
    │   ├── WrongMethod           (TypeError) an async connection in a sync method, or the reverse
    │   └── NotInTransaction                  autocommit: the message would commit alone
    ├── InvalidSetting          (ValueError)  a setting has a wrong value
    │   ├── InvalidIdentifier                 a schema or table prefix is not an identifier
    │   ├── CdcUnavailable                    the server makes no replication slot as it is set up
    │   └── TwoPhaseUnavailable               a database cannot prepare transactions as it is set up
    ├── UnsupportedDatabase     (ValueError)  the database URL names something unknown
    ├── DriverMissing           (ImportError) a driver, a broker's client or another library is not installed
    ├── DatabaseUnreachable                   the database does not answer
    ├── PrivilegeMissing                      the database user lacks a privilege
    ├── BrokerUnavailable                     the broker cannot be reached; no message counts as tried
    ├── RegistryUnavailable                   the schema registry cannot be asked; no message counts as tried
    └── SchemaError                           the tables are not what this version needs
        ├── SchemaMissing                     `postroom init` has not been run
        ├── SchemaOutdated                    `postroom init` must be run again
        └── SchemaNewer                       made by a newer Postroom
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class PostroomError(Exception):
    """The root of all errors that Postroom raises on purpose."""


class InvalidMessage(PostroomError, ValueError):
    """A field of a message is wrong. Nothing was written; the transaction is as it was."""


class PayloadTooLarge(InvalidMessage):
    """The encoded payload exceeds the size limit. Nothing was written."""


class PayloadNotEncodable(InvalidMessage):
    """The payload cannot become JSON, or does not fit its schema. Nothing was written."""


class PayloadNotDecodable(PostroomError, ValueError):
    """A message's payload cannot be decoded, or does not fit the expected class. No retry can help."""


class UnknownVersion(PayloadNotDecodable):
    """A message holds a version of its event that this program cannot read. The message is a dead letter."""


class UnknownSchema(PayloadNotDecodable):
    """A message names a schema that the schema registry does not have. The message is a dead letter."""


class SagaNotDecodable(PayloadNotDecodable):
    """A saga's data, a step's result or an event does not fit the class that the code expects.

    The saga waits, and continues by itself once a version of the code that can read it runs.
    """


class Refused(PostroomError):
    """Raised by a function of a saga, or by the last resource of a two-phase commit: do not retry.

    Its effect has not happened and never will. The saga, or the transaction, is undone. ``code`` is recorded as the
    reason, as in ``Refused("CARD_DECLINED")``; ``text`` explains it.
    """

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.code}: {self.text}" if self.text else self.code


class SagaNotFound(PostroomError, LookupError):
    """There is no saga with this name and id."""


class SagaSettled(PostroomError):
    """The saga has ended, has passed its pivot or is being undone already: it can no longer be aborted."""


class RetryExhausted(PostroomError):
    """A function failed as often as its retry policy allows. The last error is the ``__cause__``."""

    def __init__(self, message: str, attempts: int = 0) -> None:
        super().__init__(message)
        self.attempts = attempts


class OperationFailed(PostroomError):
    """One of several operations failed, and those completed before it were compensated, in reverse.

    The operation's error is the ``__cause__``. ``not_compensated`` has what must be undone by hand, if anything.
    """

    def __init__(
        self, operation: str, compensated: Sequence[str] = (), not_compensated: Sequence[NotCompensated] = ()
    ) -> None:
        super().__init__(operation)
        self.operation = operation
        self.compensated = tuple(compensated)
        self.not_compensated = tuple(not_compensated)

    def __str__(self) -> str:
        left = ", ".join(one.operation for one in self.not_compensated)
        by_hand = f"; these could not be compensated and must be undone by hand: {left}" if left else ""
        return f"operation {self.operation} failed{by_hand}"


class NotCompensated(NamedTuple):
    """An operation whose compensation failed: its effect is still there."""

    operation: str
    result: Any
    """What the operation returned, such as the id of a payment."""
    error: BaseException
    """Why the compensation failed."""


class TransactionAborted(PostroomError):
    """A participant refused its part of a two-phase commit, or ran out of time: no participant commits.

    ``participant`` says who; its error is the ``__cause__``.
    """

    def __init__(self, message: str, participant: str | None = None) -> None:
        super().__init__(message)
        self.participant = participant


class TransactionInDoubt(PostroomError):
    """A two-phase commit may have been decided, but its log cannot be asked: recovery finishes it either way.

    ``id`` finds it: `postroom transactions show`. Do not repeat the work before its outcome is known.
    """

    def __init__(self, message: str, id: str) -> None:
        super().__init__(message)
        self.id = id


class TransactionNotFound(PostroomError, LookupError):
    """The log has no two-phase commit with this id."""


class TransactionActRefused(PostroomError):
    """An operator's act does not fit what the two-phase commit is. Nothing was written."""


class ReplayRefused(PostroomError):
    """A message cannot be replayed: it belongs to a saga or a two-phase commit, or is not dead. Nothing was written."""


class SagaActRefused(PostroomError):
    """An operator's act does not fit what the saga is, such as resuming one that runs. Nothing was written."""


class IdempotencyConflict(PostroomError):
    """The idempotency key was used for a message with another digest. Nothing was written."""


class DuplicateMessage(PostroomError):
    """A message with this id is already in the outbox. Nothing was written."""


class InvalidEntry(PostroomError, ValueError):
    """The ledger does not accept a key, scope, digest or response. Nothing was written."""


class LeaseLost(PostroomError):
    """A keyed request is already finished, or was taken over by another run. Nothing was written: roll back.

    If the caller's transaction commits its work for the request anyway, the effect happens twice.
    """


class MessageNotFound(PostroomError, LookupError):
    """There is no message with this id, or no dead letter where one is expected."""


class UnusableConnection(PostroomError):
    """The connection cannot be used. Nothing was written."""


class UnsupportedConnection(UnusableConnection, TypeError):
    """Not a kind of connection that Postroom knows."""


class WrongMethod(UnusableConnection, TypeError):
    """An async connection was passed to a sync method, or the reverse."""


class NotInTransaction(UnusableConnection):
    """The connection is in autocommit mode, where Postroom's writes would commit without the business rows."""


class InvalidSetting(PostroomError, ValueError):
    """A setting has a wrong value."""


class InvalidIdentifier(InvalidSetting):
    """A schema name or table prefix is not a plain identifier."""


class CdcUnavailable(InvalidSetting):
    """PostgreSQL makes no replication slot as it is set up: it has as many as it allows, or `wal_level` is too low."""


class TwoPhaseUnavailable(InvalidSetting):
    """A database cannot take part in a two-phase commit as it is set up; the message names the setting to change."""


class UnsupportedDatabase(PostroomError, ValueError):
    """The database URL names a database that Postroom does not support."""


class DriverMissing(PostroomError, ImportError):
    """A database driver, a broker's client or another required library is not installed."""


class DatabaseUnreachable(PostroomError):
    """The database does not answer."""


class CdcActRefused(PostroomError):
    """What an operator wants cannot be done while the stream stands as it does. Nothing was changed."""


class PrivilegeMissing(PostroomError):
    """The database user lacks a privilege: `postroom schema --grants` prints what to grant."""


class BrokerUnavailable(PostroomError):
    """The broker cannot be reached, or refuses all messages: none counts as tried."""


class RegistryUnavailable(PostroomError):
    """The schema registry cannot be reached, or refuses to answer. Nothing was written; no message counts as tried."""


class SchemaError(PostroomError):
    """Postroom's tables in the database are not what this version needs."""


class SchemaMissing(SchemaError):
    """Postroom's tables are missing: `postroom init` creates them."""


class SchemaOutdated(SchemaError):
    """Postroom's tables are from an older version: `postroom init` upgrades them."""


class SchemaNewer(SchemaError):
    """Postroom's tables were made by a newer version of Postroom."""
