"""``postroom init``: create the tables, or upgrade them."""

from __future__ import annotations

from contextlib import closing

from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import print_json, print_text
from postroom.compose.databases import open_store
from postroom.settings import Settings


def init(
    database: Database = None, schema: Schema = None, table_prefix: TablePrefix = None, as_json: Json = False
) -> None:
    """Create Postroom's tables, or upgrade them. Safe to run twice, and from several processes at once."""
    from postroom.store.schema.migrations import upgrade

    settings = Settings.load(database=database, schema=schema, table_prefix=table_prefix)
    with closing(open_store(settings, create=True)) as store:
        before, now = store.call(lambda connection: upgrade(connection, store.names))
    if as_json:
        print_json({"before": before, "version": now})
    else:
        print_text(_told(before, now))


def _told(before: int | None, now: int) -> str:
    if before is None:
        return f"created version {now} of Postroom's tables"
    if before == now:
        return f"already at version {now}: nothing to do"
    return f"upgraded Postroom's tables from version {before} to version {now}"
