"""`postroom.django`: the example project and what the application promises, on each database and each Django."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.django_projects import Project, with_django
from tests.acceptance.documents import ROOT
from tests.acceptance.probing import PATIENCE, wait_until
from tests.contract.schema_support import (
    assert_guarded,
    count,
    engine_for,
    execute,
    init,
    list_only,
    names_for,
    take_guards,
)
from tests.services.databases import KINDS, need
from tests.services.nats import Nats
from tests.services.service import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

    from postroom.store.sql.names import Names
    from tests.conftest import FreshDatabase

CHECKS = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})  # before packages that install their tests
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
import django
from django.conf import settings
settings.DATABASES["other"] = {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
django.setup()
from tests.acceptance.django_checks import check_all
check_all()
"""
every_database = pytest.mark.parametrize("kind", KINDS)

DEFINITIONS = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE name LIKE 'postroom%' ORDER BY name",
    "postgresql": """
        SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
        WHERE table_schema = 'postroom' ORDER BY 1, ordinal_position;
        SELECT indexdef FROM pg_indexes WHERE schemaname = 'postroom' ORDER BY 1;
        SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'postroom'::regnamespace ORDER BY 1;
        SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1;
        SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'postroom'::regnamespace ORDER BY 1;
        SELECT viewname, definition FROM pg_views WHERE schemaname = 'postroom';
        SELECT relname, reloptions::text FROM pg_class WHERE relnamespace = 'postroom'::regnamespace ORDER BY 1
        """,
    "mysql": """
        SELECT table_name, column_name, column_type, is_nullable, column_default, extra, collation_name
        FROM information_schema.columns
        WHERE table_schema = database() AND table_name LIKE 'postroom%' ORDER BY 1, ordinal_position;
        SELECT table_name, index_name, seq_in_index, column_name, non_unique FROM information_schema.statistics
        WHERE table_schema = database() AND table_name LIKE 'postroom%' ORDER BY 1, 2, 3;
        SELECT table_name, constraint_name, check_clause FROM information_schema.check_constraints
        WHERE constraint_schema = database() AND table_name LIKE 'postroom%' ORDER BY 1, 2;
        SELECT table_name, engine, table_collation FROM information_schema.tables
        WHERE table_schema = database() AND table_name LIKE 'postroom%' ORDER BY 1
        """,
}


def definitions(engine: Engine, names: Names) -> list[tuple[object, ...]]:
    """Everything that the database says of the tables and what belongs to them."""
    statements = [
        *DEFINITIONS[names.dialect].split(";"),
        f"SELECT version FROM {names.table('schema_version')} ORDER BY 1",
    ]
    with engine.connect() as connection:
        return [tuple(row) for one in statements for row in connection.exec_driver_sql(one.replace("%", "%%"))]


@every_database
def test_it_makes_exactly_the_tables_that_init_makes_and_keeps_its_promises(
    kind: str, fresh_database: FreshDatabase, ready_database: FreshDatabase, tmp_path: Path
) -> None:
    url = fresh_database(kind)
    project = Project(url)
    project.environment["SHOP_FOLDER"] = str(tmp_path)
    project.run("-c", CHECKS)
    with engine_for(url) as migrated, engine_for(ready_database(kind)) as made:
        found = definitions(migrated, names_for(url))
        assert len(found) > 30
        assert found == definitions(made, names_for(url))


def test_the_tests_of_the_example_pass(fresh_database: FreshDatabase) -> None:
    """On MariaDB. On the other databases they are run with other versions of Django, below."""
    assert "Ran 12 tests" in Project(fresh_database("mariadb")).manage("test", "--noinput")


@pytest.fixture(scope="module")
def broker() -> str:
    place = f"nats://127.0.0.1:{need(Nats).port}"
    return f"{place}?declare=true&stream=shop&subjects=orders.created,warehouse.pick"


ORDER = "from orders.views import save_order; save_order(5)"
FLOW = f"""
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
{ORDER}
call_command("postroom", "relay", "--once")
call_command("postroom", "consume", "--once")
from orders.models import Bill
print("bills:", Bill.objects.count())
"""


def test_an_order_is_relayed_and_billed_once(fresh_database: FreshDatabase, broker: str, tmp_path: Path) -> None:
    url = fresh_database("postgresql")
    shop = Project(url, broker)
    with engine_for(url) as engine:  # tables that an older `postroom init` made
        init(engine, names_for(url))
        take_guards(engine, names_for(url))
        execute(engine, *list_only(names_for(url), 1))
    shop.manage("migrate")
    log = tmp_path / "consumer.log"
    with log.open("w") as written:
        consumer = subprocess.Popen(
            shop.command("manage.py", "postroom", "consume"), cwd=shop.directory, env=shop.environment, stderr=written
        )
    with consumer, engine_for(url) as engine:
        assert_guarded(engine, names_for(url))
        wait_until(lambda: "consumer_started" in log.read_text())
        shop.manage("shell", "-c", ORDER)
        shop.manage("postroom", "relay", "--until-empty", "--processes", "2", "--settings", "shop.settings")
        wait_until(lambda: count(engine, "orders_bill") == 1)
        consumer.send_signal(signal.SIGTERM)
        assert consumer.wait(PATIENCE) == 0
    assert json.loads(shop.manage("postroom", "status", "--json"))["sent"] == 2
    assert "(see `postroom relay --help`)" in shop.manage("postroom", "relay", "--lost", code=2)
    assert "no dead letter" in shop.manage("postroom", "dead", "list").lower()


@pytest.mark.parametrize("version", ["4.2", "newest"])
def test_it_works_with_the_oldest_and_the_newest_django(
    version: str, fresh_database: FreshDatabase, broker: str
) -> None:
    try:
        python = with_django(version)
    except Unavailable as reason:
        pytest.skip(f"NOT TESTED: Django {version}: {reason}")
    if python is None:
        pytest.skip(f"NOT TESTED: Django {version}: there is no Python that it runs on")
    on_sqlite, on_postgresql = (Project(fresh_database(kind), broker, python) for kind in ("sqlite", "postgresql"))
    for shop in (on_sqlite, on_postgresql):
        assert "Ran 12 tests" in shop.manage("test", "--noinput")
    assert "bills: 1" in on_postgresql.run("-c", FLOW)
