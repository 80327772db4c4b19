from __future__ import annotations

import re
import subprocess
import sys

import pytest

from postroom.errors import InvalidIdentifier, UnsupportedDatabase
from postroom.store.sql.names import LONGEST_NAME, MAX_IDENTIFIER, Names, channel


@pytest.mark.parametrize(
    ("dialect", "outbox", "delivery"),
    [
        ("postgresql", '"postroom"."outbox"', '"postroom"."outbox_delivery"'),
        ("sqlite", '"postroom_outbox"', '"postroom_outbox_delivery"'),
        ("mysql", "`postroom_outbox`", "`postroom_outbox_delivery`"),
        ("mariadb", "`postroom_outbox`", "`postroom_outbox_delivery`"),
    ],
)
def test_each_dialect_has_its_default_place_and_its_quotes(dialect: str, outbox: str, delivery: str) -> None:
    names = Names.of(dialect)
    assert names.table("outbox") == outbox
    assert names.mapping()["delivery"] == delivery


def test_schema_and_prefix_are_configurable() -> None:
    assert Names.of("postgresql", "shop", "mail_").table("inbox") == '"shop"."mail_inbox"'
    assert Names.of("mysql", "shop", "").table("inbox") == "`shop`.`inbox`"
    assert Names.of("sqlite", prefix="mail_").table("inbox") == '"mail_inbox"'


def test_the_mapping_names_every_table_and_the_view() -> None:
    assert set(Names.of("postgresql").mapping()) == {
        "outbox",
        "delivery",
        "receipt",
        "lane",
        "inbox",
        "idempotency",
        "audit",
        "worker",
        "saga",
        "saga_step",
        "saga_event",
        "twophase",
        "twophase_scope",
        "flow",
        "attempt",
        "stream",
        "schema_version",
        "status_view",
    }


@pytest.mark.parametrize("value", ["", "a b", 'a"b', "a;b", "1a", "a-b", "a.b", "ä", "a\n", "a`b", "a$"])
def test_a_schema_that_is_no_identifier_is_refused_with_what_is_allowed(value: str) -> None:
    with pytest.raises(InvalidIdentifier, match="letters, digits or underscores") as refusal:
        Names.of("postgresql", schema=value)
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("value", ["a b", 'a"b', "1a", "a-b", "x' OR '1'='1"])
def test_a_prefix_that_is_no_identifier_is_refused(value: str) -> None:
    with pytest.raises(InvalidIdentifier, match="table prefix"):
        Names.of("sqlite", prefix=value)


def test_a_prefix_may_be_as_long_as_the_longest_derived_name_allows() -> None:
    longest = MAX_IDENTIFIER - len(LONGEST_NAME)
    assert len(Names.of("sqlite", prefix="p" * longest).bare(LONGEST_NAME)) == MAX_IDENTIFIER
    with pytest.raises(InvalidIdentifier, match=f"at most {longest}"):
        Names.of("sqlite", prefix="p" * (longest + 1))


def test_a_schema_may_be_as_long_as_an_identifier() -> None:
    assert Names.of("postgresql", schema="s" * MAX_IDENTIFIER).schema == "s" * MAX_IDENTIFIER
    with pytest.raises(InvalidIdentifier, match=f"at most {MAX_IDENTIFIER}"):
        Names.of("postgresql", schema="s" * (MAX_IDENTIFIER + 1))


def test_sqlite_has_no_schemas() -> None:
    with pytest.raises(InvalidIdentifier, match="SQLite has no schemas: use a table prefix"):
        Names.of("sqlite", schema="postroom")


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(UnsupportedDatabase, match=r"'oracle'.*postgresql, mysql, mariadb, sqlite"):
        Names.of("oracle")


def test_names_come_without_sqlalchemy() -> None:
    program = "import sys, postroom.store.sql.names; sys.exit('sqlalchemy' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def test_a_channel_is_named_after_its_outbox_and_queue() -> None:
    assert channel(Names.of("postgresql"), "default") == "postroom.outbox.default"
    assert channel(Names.of("postgresql", "shop", "mail_"), "handlers") == "shop.mail_outbox.handlers"


def test_every_queue_has_a_channel_of_its_own_that_can_stand_in_sql() -> None:
    all_names = [Names.of("postgresql", schema) for schema in ("a", "A", "s" * MAX_IDENTIFIER)]
    queues = ["q", "Q", "q" * 64, "it's", 'a "b"', ":name", "100 %", "größe", "größe" * 9, "a.b", " "]
    channels = {channel(names, queue) for names in all_names for queue in queues}
    assert len(channels) == len(all_names) * len(queues)
    for name in channels:
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", name)
