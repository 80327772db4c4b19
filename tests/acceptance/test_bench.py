"""`postroom bench` measures what it says, counts exactly, and leaves nothing behind."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, inspect

from postroom import Message
from postroom.bench import latency
from postroom.cli import main
from postroom.store.connections.urls import resolve
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from tests.conftest import FreshDatabase

STREAMED = ["cdc", "cdc-ordered, 10,000 keys", "cdc-ordered, one hot key"]
RATES = ["relay", "relay-ordered, 10,000 keys", "relay-ordered, one hot key", "relay-ordered, unique keys"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_it_measures_beside_the_users_own_tables(
    kind: str,
    ready_database: FreshDatabase,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latency, "MESSAGES", 20)
    monkeypatch.setattr(latency, "WARM_UP", 0)
    with closing(Service(ready_database(kind))) as service:
        service.commit(Message.new("t"))
        before = _tables(service.url)
        assert main(["bench", "--messages", "200", "--rounds", "1", "--database", service.url, "--json"]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
        assert _tables(service.url) == before
        assert service.status().pending == 1
    floors = ["lean floor", "full floor"] if kind == "postgresql" else []
    streamed = STREAMED if floors else []
    waits = ["latency, floor", "latency, relay", "latency, cdc"] if floors else ["latency, relay"]
    assert list(rows) == [*floors, *RATES, *streamed, *waits]
    assert all(rows[name]["messages_per_second"] > 0 for name in (*floors, *RATES, *streamed))
    assert all(0 < rows[name]["p50_ms"] <= rows[name]["p99_ms"] for name in waits)
    assert all((row["ratio_to_floor"] is not None) == bool(floors) for row in rows.values())


def _tables(url: str) -> set[tuple[str | None, str]]:
    engine = create_engine(resolve(url))
    inspector = inspect(engine)
    schemas = inspector.get_schema_names() if url.startswith("postgresql") else [None]
    found = {
        (schema, name)
        for schema in schemas
        for name in (*inspector.get_table_names(schema), *inspector.get_view_names(schema))
    }
    engine.dispose()
    return found
