"""How columns of another outbox are read and compared, by database and type, and what the other outbox calls unsent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.importing.layouts import Format, Kind

if TYPE_CHECKING:
    from postroom.store.sql.dialect import Dialect

_WHOLE = ("smallint", "integer", "bigint", "int", "mediumint", "tinyint")
_FRACTIONS = ("numeric", "decimal", "real", "float", "double")
_TEXTS = ("text", "character", "varchar", "char", "uuid", "tinytext", "mediumtext", "longtext", "binary", "varbinary")


def is_whole(type: str) -> bool:
    """Whether a column of this type holds whole numbers."""
    return _first_word(type) in _WHOLE


def _first_word(type: str) -> str:
    return type.lower().partition("(")[0].split(" ")[0]


def has_order(type: str) -> bool:
    """Whether rows can be put into the order of an optional column of this type, with NULLs first."""
    return is_whole(type) or is_moment(type) or _first_word(type) in ("date", *_FRACTIONS, *_TEXTS)


def is_moment(type: str) -> bool:
    """Whether a column of this type holds moments."""
    return type.lower().startswith(("timestamp", "datetime"))


def read(dialect: Dialect, column: str, type: str, kind: Kind) -> str:
    """A column for a SELECT, so that no value fails to be read, and none is changed on the way."""
    if dialect.name == "postgresql":
        if is_moment(type):
            return dialect.readable(column)
        is_number = is_whole(type) or (kind is Kind.MOMENT and _first_word(type) in _FRACTIONS)
        return column if type == "bytea" or is_number else f"{column}::text"
    if dialect.name == "sqlite" and kind in (Kind.TEXT, Kind.BYTES):
        return f"CAST({column} AS BLOB)"  # a text that is not UTF-8 could not be read
    return column


def parameter(dialect: Dialect, name: str, type: str) -> str:
    """A parameter to compare with a column of this type."""
    if dialect.name != "postgresql":
        return f":{name}"
    return f":{name}::bigint" if is_whole(type) else f":{name}::text::{type}"


def earliest(dialect: Dialect, type: str) -> str:
    """What stands for NULL in a column by which rows are ordered."""
    if is_whole(type) or _first_word(type) in _FRACTIONS:
        return "0"
    return "'1000-01-01'" if is_moment(type) or _first_word(type) == "date" or dialect.name == "sqlite" else "''"


def size(dialect: Dialect, column: str, type: str) -> str:
    """The bytes of a column."""
    if dialect.name == "sqlite":
        return f"coalesce(length(CAST({column} AS BLOB)), 0)"
    return f"coalesce(octet_length({read(dialect, column, type, Kind.BYTES)}), 0)"


class Rows:
    """Conditions and the mark of one format. `column` gives a column's name in SQL, of the table called by an alias."""

    def __init__(self, format: Format, dialect: Dialect, columns: dict[str, str], table: str) -> None:
        self._format = format
        self._dialect = dialect
        self._columns = columns
        self._table = table

    def column(self, role: str, alias: str = "t") -> str:
        return f"{alias}.{self._columns[role]}"

    def unsent(self, alias: str = "t") -> str:
        """Rows that the other outbox has not sent."""
        match self._format:
            case Format.DJANGO_OUTBOX_PATTERN:
                return f"{self.column('status', alias)} = 1"
            case Format.TXOUTBOX:
                return f"{self.column('status', alias)} = 'pending'"
            case Format.FASTSTREAM_OUTBOX | Format.DEBEZIUM:
                return "1 = 1"

    def free(self, *, take_leased: bool) -> str:
        """Those of them that are neither expired nor leased by the other outbox."""
        match self._format:
            case Format.DJANGO_OUTBOX_PATTERN:
                return f"{self.column('expires_at')} >= {self._dialect.now}"
            case Format.TXOUTBOX if not take_leased:
                return f"NOT ({self._leased('t')})"
            case Format.FASTSTREAM_OUTBOX if not take_leased:
                return f"{self.column('acquired_token')} IS NULL"
            case _:
                return "1 = 1"

    def key_and_leased(self, *, take_leased: bool) -> list[str]:
        """Where a leased row holds back those behind it on its key: two columns for a SELECT that say so."""
        if self._format is not Format.TXOUTBOX or take_leased:
            return []
        return [
            read(self._dialect, self.column("key"), "text", Kind.TEXT),
            f"CASE WHEN {self._leased('t')} THEN 1 ELSE 0 END",
        ]

    def counted(self, *, take_leased: bool) -> tuple[str, str]:
        """What to count in, and a condition: rows that could be taken now."""
        free = self.free(take_leased=take_leased)
        if self._format is not Format.TXOUTBOX or take_leased:
            return f"{self._table} t", free
        # Each key's first leased row, found once: asked for each row, it would cost the square of a key's rows.
        first = (
            f"SELECT {self.column('key', 'p')} AS held_key, min({self.column('id', 'p')}) AS first_held "
            f"FROM {self._table} p WHERE {self.unsent('p')} AND {self._leased('p')} GROUP BY {self.column('key', 'p')}"
        )
        return (
            f"{self._table} t LEFT JOIN ({first}) h ON h.held_key = {self.column('key')}",
            f"{free} AND (h.first_held IS NULL OR h.first_held > {self.column('id')})",
        )

    def _leased(self, alias: str) -> str:
        until = self.column("lease_until", alias)
        now = "CAST(strftime('%s', 'now') AS REAL)" if self._dialect.name == "sqlite" else self._dialect.now
        return f"{until} IS NOT NULL AND {until} > {now}"

    def mark(self, these: str) -> str:
        """What the other outbox does to the rows that it has sent."""
        match self._format:
            case Format.DJANGO_OUTBOX_PATTERN:
                return f"UPDATE {self._table} SET {self._columns['status']} = 2 WHERE {these}"
            case Format.TXOUTBOX:
                status, owner, until = (self._columns[role] for role in ("status", "leased_by", "lease_until"))
                return f"UPDATE {self._table} SET {status} = 'done', {owner} = NULL, {until} = NULL WHERE {these}"
            case Format.FASTSTREAM_OUTBOX | Format.DEBEZIUM:
                return f"DELETE FROM {self._table} WHERE {these}"
