"""The desk in Django: keyed requests are entered on Django's own connection, and so in the transaction of its tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from postroom.errors import InvalidSetting
from postroom.settings import Settings
from postroom.store.connections.kinds import sync_kind
from postroom.store.schema.ddl import create_statements
from postroom.store.sql.db_errors import is_missing_table
from postroom.store.sql.dialect import DIALECTS
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query, run
from postroom.web.idempotency.desks import Desk, Setup
from postroom.web.idempotency.keyed_flow import Do

if TYPE_CHECKING:
    from postroom.web.idempotency.keyed_request import KeyedRequest

USING = "default"


class DjangoDesk(Desk):
    """Has no connections of its own: Django opens and closes them, each thread's for itself.

    Outside of a transaction each step commits. Within one, as that of a test or of a middleware before this one, it is
    part of it: nobody else sees the entry, so that nothing is to be renewed either.
    """

    def __init__(self, setup: Setup, using: str) -> None:
        super().__init__(setup)
        self._using = using

    def hold(self, keyed: KeyedRequest) -> None:
        """Renew the request's lease from now on."""
        if not connections[self._using].in_atomic_block:
            super().hold(keyed)

    def renew(self, keyed: KeyedRequest) -> None:
        """Renew its lease now, in the thread that does so, on a connection that is not kept."""
        try:
            super().renew(keyed)
        finally:
            connections[self._using].close()

    def _act(self, action: Any) -> Any:
        if not isinstance(action, Do):
            return super()._act(action)
        with transaction.atomic(using=self._using):
            return run(action.steps, sync_kind(connections[self._using], "").execute)


def setup_of(given: object) -> tuple[Setup, str]:
    """The setup for the options of Django's settings, and the alias of its database. Raises `InvalidSetting`."""
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"POSTROOM_IDEMPOTENCY is of the type {type(given).__name__}: give a dict of options")
    options = dict(given)
    using = options.pop("using", USING)
    if using not in list(connections):
        raise InvalidSetting(f"using = {using!r} is not one of Django's DATABASES: there are {', '.join(connections)}")
    if options.pop("database", None) is not None:
        raise InvalidSetting(
            "the option database is not for Django, whose tests would write there: leave it out, or give the alias of "
            "one of Django's DATABASES as using"
        )
    return Setup(options, _dialect_of(using)), using


def _dialect_of(using: str) -> str:
    vendor: str = connections[using].vendor
    if vendor not in DIALECTS:
        raise InvalidSetting(f"using = {using!r} is a database of {vendor}: use PostgreSQL, MySQL/MariaDB or SQLite")
    return vendor


def create_tables(_apps: Any, schema_editor: Any, schema: str | None = None, table_prefix: str | None = None) -> None:
    """Create Postroom's tables where there are none, in a migration: ``migrations.RunPython(create_tables, …noop)``.

    So they are in the databases of tests too. Those that are there are left as they are: `postroom init` upgrades them.
    """
    connection = schema_editor.connection
    settings = Settings.load(schema=schema, table_prefix=table_prefix)
    names = Names.of(connection.vendor, settings.schema, settings.table_prefix)
    if _is_there(connection, names):
        return
    with connection.cursor() as cursor:
        for statement in create_statements(names.dialect, names):
            cursor.execute(statement)


def _is_there(connection: Any, names: Names) -> bool:
    table = names.mapping()["schema_version"]
    try:
        with transaction.atomic(using=connection.alias):
            run(_read(table), sync_kind(connection, "").execute)
    except Exception as error:
        if not is_missing_table(error):
            raise
        return False
    return True


def _read(table: str) -> Any:
    return (yield Query(f"SELECT version FROM {table}"))  # noqa: S608 - a name of ours, quoted
