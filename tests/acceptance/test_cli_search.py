"""Commands that find messages, group dead letters and replay them: what an operator types and reads."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from postroom import Outbox
from postroom.store.outbox.leases import Dead
from postroom.store.outbox.queue_store import QueueStore
from tests.acceptance.operator_desk import OperatorDesk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID


class Desk(OperatorDesk):
    """An operator at a database with a few dead letters."""

    def bury(self, *errors: str) -> list[UUID]:
        def record(connection: object) -> list[UUID]:
            added = [
                Outbox().add(connection, "orders", {"number": n}, type="order.placed").id for n, _ in enumerate(errors)
            ]
            connection.commit()  # type: ignore[attr-defined]  # SQLAlchemy's
            return added

        added = self.store.call(record)
        protocol = QueueStore(self.store.names)
        claimed = self.store.run(protocol.rows.claim("relay", 1000, 30)).messages
        dead = [Dead(one, "REJECTED", error) for one, error in zip(claimed, errors, strict=True)]
        self.store.run(protocol.settlements.settle(dead))
        return added


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.chdir(tmp_path)
    with Desk(f"sqlite:///{tmp_path}/shop.db", capsys) as desk:
        desk.bury("no account 7", "no account 8", "too large")
        yield desk


def test_V_5_messages_and_dead_letters_are_found_by_more_than_their_topic(desk: Desk) -> None:
    for found in (
        desk.json("messages", "list", "--type", "order.placed", "--error", "ACCOUNT", "--since", "2000-01-01"),
        desk.json("dead", "list", "--error", "account", "--until", "2999-01-01T00:00+02:00", "--queue", "default"),
        desk.json("dead", "list", "--fingerprint", "no account …"),
    ):
        assert [one["error_message"] for one in found] == ["no account 8", "no account 7"]
    assert len(desk.json("messages", "list", "--containing", '"number":2')) == 1
    assert desk.json("messages", "list", "--until", "2000-01-01") == []
    code, _, error = desk.ended("messages", "list", "--since", "yesterday")
    assert (code, "'yesterday' is not a time" in error) == (2, True)


def test_V_5_dead_letters_are_grouped_and_a_group_is_acted_on(desk: Desk) -> None:
    told = desk.json("dead", "groups")
    assert [(one["fingerprint"], one["count"]) for one in told["groups"]] == [("no account …", 2), ("too large", 1)]
    assert "no account …" in desk("dead", "groups", "--topic", "orders")
    assert "There are more than the 1" in desk("dead", "groups", "--most", "1")
    assert desk("dead", "groups", "--code", "OTHER") == "no dead letters\n"
    assert desk.json("dead", "requeue", "--fingerprint", "no account …", "--yes")["requeued"] == 2
    code, _, error = desk.ended("messages", "cancel", "--fingerprint", "x", "--yes")
    assert (code, "dead letters alone" in error) == (2, True)


def test_V_5_a_message_is_replayed_with_what_is_changed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    [newest, second, first] = [one["id"] for one in desk.json("dead", "list")]
    desk_file = "payload.json"
    with open(desk_file, "w", encoding="utf-8") as file:  # noqa: PTH123 - in the test's own directory
        json.dump({"number": 99}, file)
    done = desk.json("messages", "replay", newest, "--payload-file", desk_file, "--header", "a=b=c", "--topic", "new")
    shown = desk.json("messages", "show", done["id"], "--payload")
    assert (shown["topic"], shown["payload"], shown["replay_of"]) == ("new", '{"number": 99}', newest)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"{}")))
    out = desk(
        "messages", "replay", first, "--payload-file", "-", "--discard-original", "--by", "ada", "--reason", "typo"
    )
    assert ", and discarded it" in out
    assert second in desk("messages", "show", second)
    assert "attempt 1 failed" in desk("messages", "show", second)
    for wrong, problem in (
        (("--header", "novalue"), "not NAME=VALUE"),
        (("--payload-file", "nowhere.json"), "cannot be read"),
    ):
        code, _, error = desk.ended("messages", "replay", second, *wrong)
        assert (code, problem in error) == (2, True)
