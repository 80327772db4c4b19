"""``postroom init``: create the tables, or upgrade them."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Literal

import typer

from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import print_json, print_text
from postroom.compose.databases import open_store
from postroom.settings import Settings

Partitions = Annotated[
    Literal["day"] | None,
    typer.Option(help="PostgreSQL: partition the outbox by about a day, so that cleanup need not delete row by row."),
]
Repair = Annotated[
    bool,
    typer.Option("--repair", help="Also make view, function, triggers, storage parameters and lanes anew."),
]


def init(
    partitions: Partitions = None,
    repair: Repair = False,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Create Postroom's tables, or upgrade them. Safe to run twice, and from several processes at once.

    With --partitions, tables that exist are partitioned too. Nobody can use the outbox meanwhile.
    """
    from postroom.store.schema import migrations
    from postroom.store.schema.partitions import check_partitions, partition

    settings = Settings.load(database=database, schema=schema, table_prefix=table_prefix)
    with closing(open_store(settings, create=True)) as store:
        if partitions:
            check_partitions(store.names)
        before, now = store.call(lambda connection: migrations.upgrade(connection, store.names))
        if repair:
            store.call(lambda connection: migrations.repair(connection, store.names))
        partitioned = bool(partitions) and store.call(lambda connection: partition(connection, store.names))
    if as_json:
        print_json({"before": before, "version": now})
        return
    print_text(_told(before, now, repaired=repair))
    if partitions:
        print_text("partitioned the outbox" if partitioned else "the outbox is partitioned already")


def _told(before: int | None, now: int, *, repaired: bool = False) -> str:
    if before is None:
        return f"created version {now} of Postroom's tables"
    if before == now and repaired:
        return f"repaired what belongs to version {now} of Postroom's tables"
    if before == now:
        return f"already at version {now}: nothing to do"
    return f"upgraded Postroom's tables from version {before} to version {now}"
