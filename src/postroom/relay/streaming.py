"""What a relay checks before it reads the stream, so that it fails at once, and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting, PrivilegeMissing
from postroom.rules.stream.modes import OLDEST_SERVER
from postroom.store.sql.db_errors import is_denied, reason
from postroom.store.stream.slots import Slots

if TYPE_CHECKING:
    from postroom.store.connections.stores import ConnectionFactory


async def prepare_stream(store: ConnectionFactory) -> None:
    """Make publication and slot, or say who must. Raises `InvalidSetting` or `PrivilegeMissing`."""
    if store.names.dialect != "postgresql":
        raise InvalidSetting(f"cdc reads PostgreSQL's write-ahead log, and this is {store.names.dialect}: leave it out")
    slots = Slots(store.names)
    async with store.connection() as run:
        server = await run(slots.server())
        if server.version < OLDEST_SERVER * 10_000:
            raise InvalidSetting(
                f"cdc needs PostgreSQL {OLDEST_SERVER} or newer, and this is {server.version // 10_000}: leave it out"
            )
        if server.wal_level != "logical":
            raise InvalidSetting(
                f"cdc needs wal_level = logical, and it is {server.wal_level}: set it in postgresql.conf, and restart "
                "the server"
            )
        name = slots.slot_of(server)
        missing: list[str] = []
        if not await run(slots.is_published()):
            try:
                await run(slots.drop_slot(name))  # it cannot show what was written without a publication
                await run(slots.publish())
            except Exception as error:
                if not _is_denied(error):
                    raise
                missing += slots.publication_statements()
        if await run(slots.slot(name)) is None and not await run(slots.may_replicate()):
            missing.append(slots.slot_statement(name, server.version))
        if missing:
            statements = "; ".join(missing)
            raise PrivilegeMissing(
                f"the database's user may not make what cdc needs: have one who may run: {statements}; "
                "`postroom schema --grants ROLE --for cdc` prints what this user needs to read the log"
            )


def _is_denied(error: Exception) -> bool:
    cause = error.__cause__ or error
    return isinstance(error, PrivilegeMissing) or is_denied(cause) or "must be owner" in reason(cause)
