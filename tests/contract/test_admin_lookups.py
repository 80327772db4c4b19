"""The inbox, the ledger and the change token as operators see them, on every database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.admin import ALL, as_json
from postroom.errors import InvalidSetting
from postroom.store.inbox import MARKERS
from postroom.store.outbox.leases import Dead, Sent

if TYPE_CHECKING:
    from tests.contract.store_drivers import Room


def test_V_6_marks_are_found_by_message_in_every_consumer(room: Room) -> None:
    marker = MARKERS[room.names.dialect](room.names)
    for consumer, message in (("billing", "m-1"), ("billing", "m-2"), ("mails", "m-1"), ("stock", "m-2")):
        room.run(marker.mark(consumer, message))
    admin = room.admin()
    assert [(one.consumer, one.message_id) for one in admin.inbox_marks("m-1")] == [
        ("billing", "m-1"),
        ("mails", "m-1"),
    ]
    [only] = admin.inbox_marks("m-2", consumer="stock")
    assert only.received_at is not None
    assert admin.inbox_marks("m-3") == admin.inbox_marks("m-1", consumer="stock") == ()
    assert as_json(admin.inbox_marks("m-1"))[0]["consumer"] == "billing"


def test_V_6_keyed_requests_are_found_by_key_and_by_scope(room: Room) -> None:
    for scope, key in (("POST /a", "k-1"), ("POST /b", "k-1"), ("POST /b", "k-2"), ("POST /c", "k-3")):
        room.execute(
            "INSERT INTO {idempotency} (scope, idempotency_key, digest, status, http_status, response_headers, "
            "response_body) VALUES (:scope, :key, :digest, 'succeeded', 201, :headers, :body)",
            scope=scope,
            key=key,
            digest="d" * 64,
            headers='[["Location", "/orders/7"]]',
            body=b"secret",
        )
    admin = room.admin()

    def found(**which: str) -> list[tuple[str, str]]:
        return [(one.scope, one.key) for one in admin.ledger_entries(**which)]  # type: ignore[arg-type]  # all are texts

    assert found(key="k-1") == [("POST /a", "k-1"), ("POST /b", "k-1")]
    assert found(scope="POST /b") == [("POST /b", "k-1"), ("POST /b", "k-2")]
    assert found(scope="POST /b", after="k-1") == found(scope="POST /b", key="k-2") == [("POST /b", "k-2")]
    assert found(key="k-9") == found(scope="POST /") == []
    [entry] = admin.ledger_entries(key="k-3")
    assert (entry.status, entry.http_status, entry.response_bytes) == ("succeeded", 201, 6)
    assert (entry.header_names, entry.headers, entry.response_body) == (("Location",), None, None)
    assert entry.created_at is not None
    assert entry.finished_at is None
    [told] = admin.ledger_entries(key="k-3", body=True)
    assert (told.headers, told.response_body) == ({"Location": "/orders/7"}, b"secret")
    assert as_json(told)["response_body"] == "secret"
    assert "response_body" not in as_json(entry)
    for wrong in ({}, {"key": "k", "limit": 0}):
        with pytest.raises(InvalidSetting):
            admin.ledger_entries(**wrong)  # type: ignore[arg-type]  # that is the point


def test_V_6_the_change_token_changes_with_what_is_seen(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.store.admin.change_token.AGES_MS", 10**12)
    admin = room.admin()
    seen = [admin.change_token()]
    assert admin.change_token() == seen[0]
    room.add(2)
    seen.append(admin.change_token())
    dead, sent = room.claim()
    room.settle(Dead(dead, "REJECTED", "not wanted"))
    seen.append(admin.change_token())
    room.settle(Sent(sent))
    seen.append(admin.change_token())
    admin.requeue(ALL, actor="ada")
    seen.append(admin.change_token())
    assert len(set(seen)) == len(seen)
