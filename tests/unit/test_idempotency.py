"""K-1, K-2: what the ledger takes for a key, a scope, a digest and a response, and what it refuses before any SQL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import InvalidEntry, InvalidIdentifier, InvalidSetting, SchemaMissing, WrongMethod
from postroom.idempotency import Entry, Ledger, Replay, Response, Run, digest_of, scope_of
from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIGEST = digest_of("POST", "/orders")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "ledger.db"
    with closing(Store(f"sqlite:///{path}")) as store:
        store.call(lambda made: upgrade(made, store.names))
    with closing(sqlite3.connect(path)) as connection:
        yield connection


class Operation(StrEnum):
    ORDER = "order"


@pytest.mark.parametrize("key", ["a", "a" * 255, "7f9c-…-é日本😀", "a b", '"quoted"', Operation.ORDER])
def test_K_1_visible_keys_are_taken(connection: sqlite3.Connection, key: str) -> None:
    run = Ledger().begin(connection, key, DIGEST, scope=key)
    assert isinstance(run, Run)
    assert (run.entry.scope, run.entry.key) == (key, key)
    assert type(run.entry.key) is str


@pytest.mark.parametrize(
    "wrong", ["", "a" * 256, " a", "a ", "a\n", "a\tb", "\x00", "a\x7f", "\u200b", "a\u00a0b", "\ud800", 7, None, b"a"]
)
def test_K_1_other_keys_are_refused_with_a_reason(connection: sqlite3.Connection, wrong: Any) -> None:
    with pytest.raises(InvalidEntry, match="the idempotency key"):
        Ledger().begin(connection, wrong, DIGEST)
    if wrong != "":
        with pytest.raises(InvalidEntry, match="the scope"):
            Ledger().begin(connection, "key", DIGEST, scope=wrong)
    assert not connection.in_transaction


@pytest.mark.parametrize("wrong", ["", "abc", "A" * 64, "g" * 64, None, b"a" * 64, DIGEST + "\n"])
def test_K_1_a_digest_is_64_hexadecimal_digits(connection: sqlite3.Connection, wrong: Any) -> None:
    with pytest.raises(InvalidEntry, match="64 lower-case hexadecimal digits"):
        Ledger().begin(connection, "key", wrong)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (b"{}", "must be a postroom.idempotency.Response, not bytes"),
        (Response(99), "status 99"),
        (Response(1000), "status 1000"),
        (Response("200"), "status '200'"),  # type: ignore[arg-type]  # what is refused
        (Response(200, (), "text"), "must be bytes, not str"),  # type: ignore[arg-type]  # what is refused
        (Response(200, (("name", 7),)), "must be a str, not int"),  # type: ignore[arg-type]  # what is refused
        (Response(200, (("name", "a\x00"),)), "HTTP cannot carry"),
        (Response(200, (("\ud800", "a"),)), "HTTP cannot carry"),
        (Response(200, (("city", "Łódź"),)), "'Ł', which HTTP cannot carry"),
        (Response(200, (("name", "a\r\nset-cookie: b"),)), r"'\\r', which HTTP cannot carry"),
        (Response(200, ("n",)), "must be pairs of str"),  # type: ignore[arg-type]  # what is refused
        (Response(200, 7), "must be pairs of str"),  # type: ignore[arg-type]  # what is refused
    ],
)
def test_K_1_a_response_that_cannot_be_kept_is_refused(connection: sqlite3.Connection, wrong: Any, reason: str) -> None:
    run = Ledger().begin(connection, "key", DIGEST)
    assert isinstance(run, Run)
    with pytest.raises(InvalidEntry, match=reason):
        Ledger().finish(connection, run.entry, wrong)
    with pytest.raises(InvalidEntry, match=reason):
        Ledger().fail(connection, run.entry, wrong)
    Ledger().finish(connection, run.entry, Response(200))


def test_K_1_headers_may_be_a_mapping(connection: sqlite3.Connection) -> None:
    run = Ledger().begin(connection, "key", DIGEST)
    assert isinstance(run, Run)
    Ledger().finish(connection, run.entry, Response(200, {"a": "b"}))  # type: ignore[arg-type]  # a common slip
    assert Ledger().begin(connection, "key", DIGEST) == Replay(Response(200, (("a", "b"),)))


def test_K_1_what_is_no_entry_is_refused_with_a_reason(connection: sqlite3.Connection) -> None:
    run: Any = Ledger().begin(connection, "key", DIGEST)
    for call in (Ledger().fail, Ledger().renew, Ledger().hand_over):
        with pytest.raises(InvalidEntry, match="not Run"):
            call(connection, run)
    with pytest.raises(InvalidEntry, match="not Run"):
        Ledger().finish(connection, run, Response(200))


@pytest.mark.parametrize("wrong", [None, True, b"a", 1.5])
def test_K_1_parts_of_a_scope_are_texts_numbers_or_uuids(wrong: Any) -> None:
    tenant = UUID(int=7)
    assert scope_of(7, tenant, "pay") == f"7/{tenant}/pay"
    with pytest.raises(InvalidEntry, match="a part of the scope"):
        scope_of(wrong, "pay")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e12])
def test_K_3_a_lease_has_an_end(connection: sqlite3.Connection, seconds: float) -> None:
    with pytest.raises(InvalidEntry, match="is not possible"):
        Ledger().renew(connection, Entry("", "key", DIGEST, 7), seconds)


def test_K_2_a_digest_tells_requests_apart() -> None:
    requests = [
        ("POST", "/orders", "", b""),
        ("PUT", "/orders", "", b""),
        ("POST", "/orders", "a=1", b""),
        ("POST", "/ordersa=1", "", b""),
        ("POST", "/orders", "", b"a=1"),
    ]
    assert len({digest_of(*request) for request in requests}) == len(requests)
    assert digest_of("post", "/orders") == digest_of("POST", "/orders", "", b"")


@given(st.lists(st.text(), min_size=1), st.lists(st.text(), min_size=1))
def test_K_1_scopes_of_different_parts_differ(some: list[str], others: list[str]) -> None:
    assert (scope_of(*some) == scope_of(*others)) == (some == others)


def test_K_3_a_bad_setting_is_refused_at_once() -> None:
    with pytest.raises(InvalidSetting, match="idempotency_lease_sec"):
        Ledger(lease_seconds=0)
    with pytest.raises(InvalidSetting, match="idempotency_keep_sec"):
        Ledger(keep_seconds=-1)
    with pytest.raises(InvalidIdentifier, match="table prefix"):
        Ledger(table_prefix="a b")
    assert Ledger(lease_seconds=60).lease_seconds == 60


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDEMPOTENCY_LEASE_SEC", "7")
    assert Ledger().lease_seconds == 7


async def test_the_wrong_method_is_named(connection: sqlite3.Connection) -> None:
    with pytest.raises(WrongMethod, match=r"use `ledger.begin\(…\)` without await"):
        await Ledger().abegin(connection, "key", DIGEST)
    with pytest.raises(WrongMethod, match=r"use `ledger.finish\(…\)` without await"):
        await Ledger().afinish(connection, Entry("", "key", DIGEST, 7), Response(200))


def test_missing_tables_are_told_of() -> None:
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(SchemaMissing, match="postroom init"):
        Ledger().begin(connection, "key", DIGEST)
