"""Names: where Postroom's tables are in a database, and how SQL spells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from postroom.errors import InvalidIdentifier, UnsupportedDatabase

TABLES = {
    "outbox": "outbox",
    "delivery": "outbox_delivery",
    "receipt": "outbox_receipt",
    "lane": "outbox_lane",
    "inbox": "inbox",
    "idempotency": "idempotency",
    "audit": "audit",
    "worker": "relay_worker",
    "saga": "saga",
    "saga_step": "saga_step",
    "saga_event": "saga_event",
    "twophase": "twophase",
    "twophase_scope": "twophase_scope",
    "flow": "flow",
    "attempt": "outbox_attempt",
    "stream": "outbox_stream",
    "schema_version": "schema_version",
    "status_view": "outbox_status",
}
"""What SQL templates call a table or view → its name without schema and prefix."""

MAX_IDENTIFIER = 63
"""The longest name that every database keeps whole (PostgreSQL cuts longer ones, MySQL refuses above 64)."""

LONGEST_NAME = "outbox_idempotency_key_unique"
"""The longest name of a table, index or anything else that takes the prefix."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CHANNEL = re.compile(r"[A-Za-z0-9_.-]+")
_ALLOWED = "a letter or underscore, then letters, digits or underscores (plain ASCII)"
_DIALECTS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}


@dataclass(frozen=True, slots=True)
class Names:
    """Where the tables are. Make one with `Names.of`, which fills in the defaults and validates."""

    dialect: str
    """``postgresql``, ``mysql`` (for MariaDB too) or ``sqlite``."""
    schema: str | None
    """A schema on PostgreSQL, a database on MySQL, or None for where the connection points."""
    prefix: str

    @classmethod
    def of(cls, dialect: str, schema: str | None = None, prefix: str | None = None) -> Names:
        """The names for a dialect, with its defaults for what is None.

        PostgreSQL: schema ``postroom`` and no prefix; elsewhere: no schema and the prefix ``postroom_``.
        Raises `InvalidIdentifier` for a name that SQL does not take unquoted, or that is too long.
        """
        dialect = dialect_of(dialect)
        if schema is None and dialect == "postgresql":
            schema = "postroom"
        if prefix is None:
            prefix = "" if dialect == "postgresql" else "postroom_"
        if schema is not None:
            _validate_schema(dialect, schema)
        if prefix:
            _validate("table prefix", prefix, MAX_IDENTIFIER - len(LONGEST_NAME))
        return cls(dialect, schema, prefix)

    def bare(self, name: str) -> str:
        """The name with its prefix, unquoted and without the schema."""
        return self.prefix + name

    def table(self, name: str) -> str:
        """The full name of a table, view or function as SQL text, always quoted, so that case and keywords are safe."""
        own = self.quoted(self.bare(name))
        return own if self.schema is None else f"{self.quoted(self.schema)}.{own}"

    def quoted(self, identifier: str) -> str:
        """One identifier in this dialect's quotes."""
        mark = "`" if self.dialect == "mysql" else '"'
        return f"{mark}{identifier}{mark}"

    def mapping(self) -> dict[str, str]:
        """The full names for SQL templates: ``outbox``, ``delivery`` and the other keys of `TABLES`."""
        return {key: self.table(name) for key, name in TABLES.items()}


WAKE_ROWS, WAKE_LANES = "rows", "lanes"
"""What a notification announces: messages without a key, or with one. Any other text means both."""


def channel(names: Names, queue: str) -> str:
    """The PostgreSQL channel that announces messages added to a queue: ``postroom.outbox.default``.

    One for each queue of each outbox, at most 63 characters, and safe in SQL without quoting. A name that would be
    longer, or has other characters, is replaced by a hash.
    """
    plain = f"{names.schema}.{names.bare('outbox')}.{queue}"
    if len(plain) <= MAX_IDENTIFIER and _CHANNEL.fullmatch(plain):
        return plain
    return f"postroom.{sha256(plain.encode()).hexdigest()[:32]}"


def dialect_of(name: str) -> str:
    """Postroom's name for a dialect of SQLAlchemy or of a URL. Raises `UnsupportedDatabase`."""
    if name not in _DIALECTS:
        raise UnsupportedDatabase(
            f"{name!r} is not a database that Postroom supports: use one of {', '.join(_DIALECTS)}"
        )
    return _DIALECTS[name]


def _validate_schema(dialect: str, schema: str) -> None:
    if dialect == "sqlite":
        raise InvalidIdentifier(f"schema {schema!r} is set, but SQLite has no schemas: use a table prefix instead")
    _validate("schema", schema, MAX_IDENTIFIER)


def _validate(what: str, value: str, longest: int) -> None:
    if not _IDENTIFIER.fullmatch(value):
        raise InvalidIdentifier(f"{what} {value!r} is not a plain identifier: {_ALLOWED}")
    if len(value) > longest:
        raise InvalidIdentifier(f"{what} {value!r} has {len(value)} characters: at most {longest} are allowed")
