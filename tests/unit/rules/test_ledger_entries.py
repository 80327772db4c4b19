"""What the ledger accepts, and what it refuses with a reason."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from postroom.errors import InvalidEntry
from postroom.rules.ledger_entries import checked_digest, checked_key, checked_response, checked_scope, scope_of
from postroom.rules.replay import Response


def test_what_is_valid_is_returned_as_plain_values() -> None:
    assert checked_scope("") == ""
    assert checked_scope("shop 7") == "shop 7"
    assert checked_key("a" * 255) == "a" * 255
    assert checked_digest("0" * 64) == "0" * 64
    headers: Any = {"a": "b"}
    assert checked_response(Response(201, headers, b"{}")) == Response(201, (("a", "b"),), b"{}")


@pytest.mark.parametrize("wrong", ["", "a" * 256, " a", "a\n", "\u200b", 7, None])
def test_keys_that_cannot_be_seen_or_stored_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidEntry, match="the idempotency key"):
        checked_key(wrong)


@pytest.mark.parametrize("wrong", ["", "A" * 64, None])
def test_a_digest_is_64_hexadecimal_digits(wrong: Any) -> None:
    with pytest.raises(InvalidEntry, match="64 lower-case hexadecimal digits"):
        checked_digest(wrong)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("text", "must be a postroom"),
        (Response(99), "status 99"),
        (Response(200, (), "text"), "must be bytes"),  # type: ignore[arg-type]  # what is refused
        (Response(200, 7), "pairs of str"),  # type: ignore[arg-type]  # what is refused
        (Response(200, (("name", 7),)), "must be a str"),  # type: ignore[arg-type]  # what is refused
        (Response(200, (("name", "a\n"),)), "HTTP cannot carry"),
    ],
)
def test_responses_that_http_cannot_carry_are_refused(wrong: Any, reason: str) -> None:
    with pytest.raises(InvalidEntry, match=reason):
        checked_response(wrong)


def test_scopes_join_texts_numbers_and_uuids() -> None:
    tenant = UUID(int=7)
    assert scope_of(7, tenant, "a/b%") == f"7/{tenant}/a%2Fb%25"
    for wrong in (None, True, 1.5):
        with pytest.raises(InvalidEntry, match="a part of the scope"):
            scope_of(wrong)  # type: ignore[arg-type]  # what is refused
