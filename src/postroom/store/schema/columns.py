"""What the tables' columns have in common: types and defaults on each database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import CHAR, TIMESTAMP, BigInteger, Column, Identity, Integer, LargeBinary, String, Text, text
from sqlalchemy.dialects import mysql, postgresql

from postroom.store.sql.dialect import DIALECTS

if TYPE_CHECKING:
    from sqlalchemy.sql.elements import TextClause
    from sqlalchemy.types import TypeEngine


@dataclass(frozen=True)
class Types:
    """The columns' types and defaults on one database."""

    position: TypeEngine[Any]
    identity: bool
    """Whether numbered rows need an identity. Elsewhere, a plain integer primary key is enough."""
    uuid: TypeEngine[Any]
    queue: TypeEngine[Any]
    bytes: TypeEngine[Any]
    json: TypeEngine[Any]
    long_text: TypeEngine[Any]
    moment: TypeEngine[Any]
    now: TextClause
    never: TextClause


TYPES = {
    "postgresql": Types(
        position=BigInteger(),
        identity=True,
        uuid=postgresql.UUID(as_uuid=False),
        queue=String(64, collation="C"),
        bytes=postgresql.BYTEA(),
        json=postgresql.JSONB(),
        long_text=Text(),
        moment=TIMESTAMP(timezone=True),
        now=text(DIALECTS["postgresql"].now),
        never=text(DIALECTS["postgresql"].never),
    ),
    "mysql": Types(
        position=BigInteger(),
        identity=False,
        uuid=CHAR(36),
        queue=String(64),
        bytes=mysql.LONGBLOB(),
        json=mysql.LONGTEXT(),
        long_text=mysql.LONGTEXT(),
        moment=mysql.DATETIME(fsp=6),
        now=text(f"({DIALECTS['mysql'].now})"),
        never=text("'1970-01-01 00:00:00.000000'"),  # as the server shows it, or Alembic would see a difference
    ),
    "sqlite": Types(
        position=Integer(),  # only INTEGER can be AUTOINCREMENT, and it has 64 bits
        identity=False,
        uuid=CHAR(36),
        queue=String(64),
        bytes=LargeBinary(),
        json=Text(),
        long_text=Text(),
        moment=Text(),
        now=text(f"({DIALECTS['sqlite'].now})"),
        never=text(DIALECTS["sqlite"].never),
    ),
}


def numbered(name: str, types: Types) -> Column[int]:
    identity = [Identity()] if types.identity else []
    return Column(name, types.position, *identity, primary_key=True, autoincrement=True)


def moment(name: str, types: Types, default: TextClause) -> Column[Any]:
    return Column(name, types.moment, nullable=False, server_default=default)


def number(name: str, kind: type[Integer]) -> Column[int]:
    return Column(name, kind, nullable=False, server_default=text("0"))


def words(name: str, longest: int) -> Column[str]:
    return Column(name, String(longest), nullable=False, server_default=text("''"))
