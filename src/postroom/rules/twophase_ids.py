"""Ids of global transactions and of their branches, which tell ours from others' on a shared server.

An id carries its transaction's deadline, so that recovery can tell an abandoned branch although no log mentions it.
Every form is plain ASCII without quotes, because the commands of two-phase commit take no parameters.
"""

import re
from typing import NamedTuple

from postroom.errors import InvalidSetting

FORMAT_ID = 20562
"""Of our XA ids."""
LAST = "last"
"""The name in the log for the one resource that cannot prepare; no participant has it."""
LONGEST_PARTICIPANT = 24

_PREFIX = "pr1"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NAME = rf"[a-z0-9_-]{{1,{LONGEST_PARTICIPANT}}}"
_TX = "[0-9a-z]{1,12}-[0-9a-f]{12}"
_GTRID = rf"{_PREFIX}:(?P<scope>[0-9a-f]{{8}}):(?P<tx>{_TX})"
_CONNECTION = "(?P<connection>[1-9][0-9]{0,19}):(?P<started>[0-9a-z]{1,7})"
_MARK = "(?P<mark>:m)?"
_PARTICIPANT = re.compile(_NAME)
_TRANSACTION = re.compile(_TX)
_GID = re.compile(rf"{_GTRID}:(?P<participant>{_NAME})(?::{_CONNECTION})?{_MARK}")
_XID = re.compile(rf"{_GTRID}\n(?P<participant>{_NAME}):{_CONNECTION}{_MARK}")


class BranchId(NamedTuple):
    """A participant's part of one transaction."""

    scope: str
    """Of the log that decides: 8 hexadecimal digits."""
    tx: str
    participant: str
    connection: int = 0
    """On MySQL, the one that began it: a prepared branch cannot be finished by others while it is open."""
    started: int = 0
    """On MySQL, when its server was started, in seconds: a restarted one gives its connections the same ids again."""
    marked: bool = False
    """It leaves a mark in its database's inbox. One that began before there was an inbox does not."""

    @property
    def text(self) -> str:
        """As the log keeps it; `read_gid` reads it. Without a connection and a mark, it is the `gid`."""
        return f"{_PREFIX}:{self.scope}:{self.tx}:{self.qualifier}"

    @property
    def qualifier(self) -> str:
        """The part that tells the branches of a transaction from each other."""
        connection = f":{self.connection}:{_base_36(self.started)}" if self.connection else ""
        return f"{self.participant}{connection}{':m' if self.marked else ''}"


def transaction_id(deadline_ms: int, random: str) -> str:
    """The id of a transaction that ends at this time of the log's clock. `random`: 12 hexadecimal digits."""
    tx = f"{_base_36(deadline_ms)}-{random}"
    if not _TRANSACTION.fullmatch(tx):
        raise ValueError(f"deadline {deadline_ms!r} and {random!r} make no id: give milliseconds and 12 hex digits")
    return tx


def deadline_of(tx: str) -> int | None:
    """The deadline in a transaction's id, in milliseconds of the log's clock; None if the text is no such id."""
    return int(tx.partition("-")[0], 36) if _TRANSACTION.fullmatch(tx) else None


def checked_participant(name: object) -> str:
    """Return the name if it can be part of every kind of id. Raises `InvalidSetting`."""
    if not isinstance(name, str) or not _PARTICIPANT.fullmatch(name):
        raise InvalidSetting(
            f"participant name {name!r} is not valid: give 1 to {LONGEST_PARTICIPANT} of the characters a-z, 0-9, _ "
            "and -"
        )
    if name == LAST:
        raise InvalidSetting(f"participant name {name!r} is taken by the resource given as last=…: give another")
    return name


def gid(scope: str, tx: str, participant: str) -> str:
    """The id of a branch that has no more to say, such as a user's resource gets."""
    return BranchId(scope, tx, participant).text


def gtrid(scope: str, tx: str) -> bytes:
    """The global part of an XA id, which all branches of a transaction share."""
    return f"{_PREFIX}:{scope}:{tx}".encode("ascii")


def bqual(branch: BranchId) -> bytes:
    """The branch's part of an XA id."""
    return branch.qualifier.encode("ascii")


def read_gid(text: str) -> BranchId | None:
    """The branch of a `gid` or of `BranchId.text`; None if it is not one of ours."""
    return _branch(_GID.fullmatch(text))


def read_xid(format_id: int, gtrid: bytes, bqual: bytes) -> BranchId | None:
    """The branch of an XA id; None if it is not one of ours: others' may hold any bytes."""
    if format_id != FORMAT_ID or not (gtrid.isascii() and bqual.isascii()):
        return None
    return _branch(_XID.fullmatch(f"{gtrid.decode('ascii')}\n{bqual.decode('ascii')}"))


def _branch(match: re.Match[str] | None) -> BranchId | None:
    if match is None:
        return None
    connection, started = int(match["connection"] or 0), int(match["started"] or "0", 36)
    return BranchId(match["scope"], match["tx"], match["participant"], connection, started, bool(match["mark"]))


def _base_36(number: int) -> str:
    digits = ""
    while number > 0:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"
