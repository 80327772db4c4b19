"""SQL that differs between databases by a word or two: clocks, moments, locks and lists of values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from postroom.rules.ordering import LANES, NO_LANE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_NEVER_YEAR = 1970
EARLIEST, LATEST = "1000-01-01 00:00:00+00", "9999-01-01 00:00:00+00"
"""Between these moments all databases and Python agree, whatever the time zone."""


class Dialect:
    """Small SQL expressions. Statements that differ as a whole are in modules named after their database."""

    name: ClassVar[str]
    now: ClassVar[str]
    """The database's clock at the start of the statement."""
    now_ms: ClassVar[str]
    """The database's clock as a whole number: milliseconds since 1970, whatever the time zone of the session."""
    never: ClassVar[str]
    """A moment before all others: when a lease ends that does not exist."""
    begin: ClassVar[str] = "BEGIN"
    for_update: ClassVar[str] = " FOR UPDATE"
    skip_locked: ClassVar[str] = " FOR UPDATE SKIP LOCKED"
    by_primary_key: ClassVar[str] = ""
    """Follows the name of a table, so that a statement finds its rows by primary key, and waits for no others."""
    delete: ClassVar[str] = "DELETE"
    """What stands before FROM in a DELETE of deliveries called `d`."""
    delete_at_most: ClassVar[str] = ""
    """Ends a DELETE of a run of `:count` deliveries that are all locked: it must not wait for the one behind them."""
    listed_positions: ClassVar[str]
    """A table of one column, `position`: the whole numbers in the parameter `:positions`, a JSON array."""
    replace_receipt: ClassVar[str] = (
        "ON CONFLICT (position) DO UPDATE SET sent_at = excluded.sent_at, outcome = excluded.outcome, "
        "attempts = excluded.attempts, answer = excluded.answer, dedup = excluded.dedup"
    )
    """What follows an INSERT of receipts, so that an existing one cannot fail its batch forever."""

    def insert_missing(self, table: str, columns: str, rows: str) -> str:
        """Insert the rows that do not exist yet."""
        return f"INSERT INTO {table} ({columns}) VALUES {rows} ON CONFLICT DO NOTHING"

    def insert_selected(self, table: str, columns: str, rows: str, column: str) -> str:
        """Insert what a SELECT finds, without the rows that exist. `column` is one that is not in the primary key."""
        del column
        return f"INSERT INTO {table} ({columns}) {rows} ON CONFLICT DO NOTHING"

    def replace(self, key: str, column: str) -> str:
        """What follows an INSERT, so that a row with the same primary key gets the new value of a column."""
        return f"ON CONFLICT ({key}) DO UPDATE SET {column} = excluded.{column}"

    def remainder(self, column: str, divisor: int) -> str:
        """The remainder of a division. Its usual sign would be taken for a parameter by some drivers."""
        return f"mod({column}, {divisor})"

    def hour_of(self, moment: str) -> str:
        """A moment as hours since 1970, rounded down; NULL for one that Python cannot represent."""
        raise NotImplementedError

    def digits_alike(self, column: str) -> str:
        """A text with every digit replaced by 1: those that differ in numbers alone become one."""
        alike = column
        for digit in "023456789":
            alike = f"replace({alike}, '{digit}', '1')"
        return alike

    def contains(self, column: str, value: str) -> str:
        """A condition: bytes hold the bytes in a parameter."""
        raise NotImplementedError

    def later(self, seconds: str) -> str:
        """The clock plus the seconds in the parameter."""
        raise NotImplementedError

    def places(self, lanes: Mapping[int, Sequence[int]]) -> str:
        """A condition that finds deliveries by primary key, next to state and queue. `lanes`: positions by lane."""
        each = (f"(lane = {lane} AND position IN ({whole_numbers(lanes[lane])}))" for lane in sorted(lanes))
        return f"({' OR '.join(each)})"

    def only_deliveries(self, table: str, lanes: Mapping[int, Sequence[int]]) -> tuple[str, str]:
        """A FROM clause and a condition, next to state and queue, that lock only these deliveries, called `d`."""
        return f"{table} AS d", self.places(lanes)

    def only_lanes(self, table: str, numbers: Sequence[int]) -> tuple[str, str]:
        """A FROM clause and a condition, next to the queue, that lock only these lanes, called `l`, in this order."""
        return f"{table} AS l", f"l.lane IN ({whole_numbers(numbers)})"

    def for_update_of(self, table: str) -> str:
        """Lock the rows of one table of a join; of all tables, where the database knows no difference."""
        del table
        return self.for_update

    def seconds_since(self, moment: str) -> str:
        """Seconds since a moment, by the database's clock."""
        raise NotImplementedError

    def readable(self, moment: str) -> str:
        """A moment that every driver can read; NULL for one that Python cannot represent."""
        return moment

    def bytes_of(self, message: str) -> str:
        """A message's payload and headers in bytes."""
        return f"coalesce(octet_length({message}.payload), 0) + coalesce(octet_length({message}.headers), 0)"

    def whole(self, column: str) -> str:
        """A column of whole numbers."""
        return column

    def moment(self, value: datetime | None) -> Any:
        """A moment as a parameter."""
        raise NotImplementedError

    def read_moment(self, value: Any) -> datetime | None:
        """A moment as the driver returned it, in UTC; None for never, and for what is not a moment."""
        raise NotImplementedError


class PostgreSQL(Dialect):
    name = "postgresql"
    now = "statement_timestamp()"
    now_ms = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    never = "'-infinity'"
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"

    def hour_of(self, moment: str) -> str:
        return f"floor(extract(epoch FROM {self.readable(moment)}) / 3600)::bigint"

    def digits_alike(self, column: str) -> str:
        return f"translate({column}, '023456789', '111111111')"

    def contains(self, column: str, value: str) -> str:
        return f"position({value}::bytea IN {column}) > 0"

    def later(self, seconds: str) -> str:
        return f"statement_timestamp() + make_interval(secs => {seconds}::float8)"

    def for_update_of(self, table: str) -> str:
        return f"{self.for_update} OF {table}"

    def seconds_since(self, moment: str) -> str:
        return f"extract(epoch FROM {self.now} - {self.readable(moment)})"

    def readable(self, moment: str) -> str:
        return f"CASE WHEN {moment} >= '{EARLIEST}' AND {moment} < '{LATEST}' THEN {moment} END"

    def bytes_of(self, message: str) -> str:
        return super().bytes_of(message).replace(".headers", ".headers::text")

    def moment(self, value: datetime | None) -> datetime | None:
        return value

    def read_moment(self, value: Any) -> datetime | None:
        if not isinstance(value, datetime):
            return None
        return value if value.tzinfo is UTC else value.astimezone(UTC)


class MySQL(Dialect):
    """MariaDB 10.6 and MySQL 8.0.4, or newer: SKIP LOCKED and JSON_TABLE."""

    name = "mysql"
    now = "utc_timestamp(6)"
    now_ms = "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) DIV 1000"
    never = f"'{_NEVER_YEAR}-01-01 00:00:00'"  # MySQL has no minus infinity
    begin = "START TRANSACTION"
    by_primary_key = " FORCE INDEX (PRIMARY)"
    delete = "DELETE d"
    delete_at_most = " LIMIT :count"
    listed_positions = "JSON_TABLE(:positions, '$[*]' COLUMNS (position BIGINT PATH '$'))"
    replace_receipt = (
        "ON DUPLICATE KEY UPDATE sent_at = VALUES(sent_at), outcome = VALUES(outcome), attempts = VALUES(attempts), "
        "answer = VALUES(answer), dedup = VALUES(dedup)"
    )

    def insert_missing(self, table: str, columns: str, rows: str) -> str:
        column = columns.partition(",")[0]  # IGNORE would have drivers warn of each that is there
        return f"INSERT INTO {table} ({columns}) VALUES {rows} ON DUPLICATE KEY UPDATE {column} = {column}"

    def insert_selected(self, table: str, columns: str, rows: str, column: str) -> str:
        return f"INSERT INTO {table} ({columns}) {rows} ON DUPLICATE KEY UPDATE {column} = VALUES({column})"

    def replace(self, key: str, column: str) -> str:
        del key
        return f"ON DUPLICATE KEY UPDATE {column} = VALUES({column})"

    def hour_of(self, moment: str) -> str:
        return f"timestampdiff(HOUR, '1970-01-01', nullif({moment}, {self.never}))"

    def contains(self, column: str, value: str) -> str:
        return f"locate({value}, {column}) > 0"

    # Given a list of keys, it may read the whole queue if that is small, whatever the index, and then waits for every
    # row that some transaction has locked. In a join, it looks up each row by its whole key.

    def only_deliveries(self, table: str, lanes: Mapping[int, Sequence[int]]) -> tuple[str, str]:
        keys = [f"{lane}, {position}" for lane in sorted(lanes) for position in lanes[lane]]
        source = _looked_up(table, "d", "0 AS lane, 0 AS position", keys)
        return source, "d.lane = these.lane AND d.position = these.position"

    def only_lanes(self, table: str, numbers: Sequence[int]) -> tuple[str, str]:
        return _looked_up(table, "l", "0 AS lane", [str(number) for number in numbers]), "l.lane = these.lane"

    def later(self, seconds: str) -> str:
        return f"utc_timestamp(6) + INTERVAL {seconds} SECOND"

    def seconds_since(self, moment: str) -> str:
        return f"timestampdiff(MICROSECOND, {moment}, {self.now}) / 1000000"

    def moment(self, value: datetime | None) -> str | None:
        return None if value is None else _utc(value).isoformat(" ", "microseconds")

    def read_moment(self, value: Any) -> datetime | None:
        if not isinstance(value, datetime) or value.year <= _NEVER_YEAR:
            return None
        return value.replace(tzinfo=UTC)


class SQLite(Dialect):
    name = "sqlite"
    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    now_ms = "CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER)"
    never = "''"
    begin = "BEGIN IMMEDIATE"  # a read that turns into a write would fail at once with SQLITE_BUSY
    for_update = ""
    skip_locked = ""
    listed_positions = "(SELECT value AS position FROM json_each(:positions))"

    def places(self, lanes: Mapping[int, Sequence[int]]) -> str:
        # With OR it would read all that is ready. A position is in one lane only, so this finds the same.
        positions = [position for lane in sorted(lanes) for position in lanes[lane]]
        return f"lane IN ({whole_numbers(sorted(lanes))}) AND position IN ({whole_numbers(positions)})"

    def remainder(self, column: str, divisor: int) -> str:
        return f"({column} % {divisor})"  # mod() is not in every build

    def hour_of(self, moment: str) -> str:
        return f"CAST(strftime('%s', nullif({moment}, '')) AS INTEGER) / 3600"

    def contains(self, column: str, value: str) -> str:
        return f"instr(CAST({column} AS BLOB), {value}) > 0"

    def later(self, seconds: str) -> str:
        return f"strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds')"

    def seconds_since(self, moment: str) -> str:
        return f"(julianday({self.now}) - julianday({moment})) * 86400.0"

    def bytes_of(self, message: str) -> str:
        return super().bytes_of(message).replace("octet_length", "length")  # the former is new in 3.43

    def whole(self, column: str) -> str:
        return f"CAST({column} AS INTEGER)"  # it keeps whatever was written there, a text too

    def moment(self, value: datetime | None) -> str | None:
        return None if value is None else _utc(value).isoformat(" ", "milliseconds")

    def read_moment(self, value: Any) -> datetime | None:
        try:
            return datetime.fromisoformat(value + "Z")  # five times as fast as replacing the time zone
        except (TypeError, ValueError):
            return self._read_unusual(value)

    def _read_unusual(self, value: Any) -> datetime | None:
        try:
            return datetime.fromisoformat(value).replace(tzinfo=UTC) if value else None
        except (TypeError, ValueError):
            return None


DIALECTS: dict[str, type[Dialect]] = {dialect.name: dialect for dialect in (PostgreSQL, MySQL, SQLite)}


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


def _looked_up(table: str, alias: str, columns: str, keys: Sequence[str]) -> str:
    rows = "".join(f" UNION ALL SELECT {key}" for key in keys)
    these = f"(SELECT {columns} FROM dual WHERE 1 = 0{rows}) AS these"
    return f"{these} STRAIGHT_JOIN {table} AS {alias}{MySQL.by_primary_key}"


def whole_numbers(values: Sequence[int]) -> str:
    """A list for SQL's IN. Whole numbers need no escaping; an empty list matches nothing."""
    return ",".join(map(str, values)) or "NULL"


ALL_LANES = whole_numbers([NO_LANE, *range(LANES)])


def as_json(values: object) -> str:
    return msgspec.json.encode(values).decode()


def text(value: object) -> str:
    """As text, even if the caller's connection returns bytes, or a UUID."""
    return value.decode() if isinstance(value, bytes) else str(value)


def listed(parts: Iterable[str]) -> str:
    return ", ".join(parts)
