"""The table of the stream, on PostgreSQL: whether producers write to it, who reads it, and how far it was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Column, MetaData, String, Table, text

from postroom.rules.stream.modes import Mode
from postroom.store.schema.columns import Types, moment, number, words

if TYPE_CHECKING:
    from postroom.store.sql.names import Names


def stream(tables: MetaData, names: Names, types: Types) -> Table:
    """One row, which `init` makes. Its lease says which relay reads; `done` is written a few times a minute."""
    return Table(
        names.bare("outbox_stream"),
        tables,
        Column("name", String(64), primary_key=True),
        Column("mode", String(16), nullable=False, server_default=text(f"'{Mode.TABLE}'")),
        words("slot", 63),
        words("system_id", 32),
        number("publication", BigInteger),  # its number on the server, which a new one of the same name does not have
        number("done", BigInteger),  # a place in the WAL: everything before it is settled, or has a delivery
        number("read_to", BigInteger),  # beyond this place nothing was ever read; 0 if that is not known
        number("token", BigInteger),
        # What Debezium has sent: see `postroom.store.stream.debezium`.
        number("settled", BigInteger),
        number("marked", BigInteger),
        number("marked_before", BigInteger),
        words("owner", 255),
        moment("leased_until", types, types.never),
        moment("changed_at", types, types.now),  # when the mode changed last
    )
