"""The idempotency key of a request, wherever it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import InvalidEntry
from postroom.idempotency import MOST_CHARACTERS, NO_DIGEST, entry_of
from postroom.web import parse_key
from postroom.web.idempotency.keys import FORM, InvalidKey, key_in_body, key_in_header, may_hold_key
from postroom.web.requests import Request

if TYPE_CHECKING:
    from collections.abc import Callable

FIELD = "idempotency_key"
VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=MOST_CHARACTERS)


def request(*headers: tuple[str, str]) -> Request:
    return Request("POST", "/", "/", "", headers, None)


def with_key(*values: str) -> Request:
    return request(*(("idempotency-key", value) for value in values))


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("7f9c", "7f9c"),
        ('"7f9c"', "7f9c"),
        ('  "7f9c"\t', "7f9c"),
        ('"7f9c";v=1', "7f9c"),
        ('"7f9c" ; v="x"', "7f9c"),
        (r'"a\"b\\c"', r'a"b\c'),
        ("two words", "two words"),
        ('a"b', 'a"b'),
        ("a;b", "a;b"),
        ('"a,b;c"', "a,b;c"),
        ('"a";v="x,y"', "a"),
    ],
)
def test_a_key_is_quoted_or_not(value: str, key: str) -> None:
    assert key_in_header(with_key(value)) == key
    assert parse_key(value) == key


@pytest.mark.parametrize(
    "value", ["", " ", '"', '"a', '"a"b', '"a", "b"', r'"a\b"', "a\x00", "é", '"é"', "a\nb", "a\n"]
)
@pytest.mark.parametrize("parse", [parse_key, lambda value: key_in_header(with_key(value))], ids=["value", "header"])
def test_what_is_neither_is_refused(value: str, parse: Callable[[str], object]) -> None:
    with pytest.raises(InvalidEntry):
        parse(value)


@pytest.mark.parametrize("value", ['""', '" a"', '"a "', "k" * 256, f'"{"k" * 256}"'])
def test_a_quoted_string_that_the_ledger_does_not_take_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        parse_key(value)
    assert value not in str(refused.value)


def test_quotes_and_parameters_do_not_count_as_a_part_of_the_key() -> None:
    assert parse_key(f'"{"k" * MOST_CHARACTERS}";v=1') == "k" * MOST_CHARACTERS


@pytest.mark.parametrize("value", ["a,b", "a, b", ",a", "a,", ",", '"a","b"', '"a", b', 'a, "b"', '"a";v=1, "b"'])
def test_two_headers_that_a_server_has_joined_are_refused(value: str) -> None:
    with pytest.raises(InvalidEntry):
        parse_key(value)


def test_there_may_be_none_but_not_two() -> None:
    assert key_in_header(request()) is None
    with pytest.raises(InvalidKey, match="more than once"):
        key_in_header(with_key("a", "a"))


@given(VISIBLE)
def test_quoting_changes_nothing(key: str) -> None:
    quoted = '"' + key.replace("\\", r"\\").replace('"', r"\"") + '"'
    assert key_in_header(with_key(quoted)) == key
    if not key.startswith('"') and "," not in key:
        assert key_in_header(with_key(key)) == key


@given(st.text(st.characters(codec="latin-1")))
def test_any_header_gives_a_key_or_is_refused(value: str) -> None:
    try:
        key = key_in_header(with_key(value))
    except InvalidKey:
        return
    assert key is not None
    assert key.isascii()
    assert entry_of("", key, NO_DIGEST).key == key


@given(st.text())
def test_a_field_of_the_body_holds_the_key(key: str) -> None:
    body = json.dumps({"a": [1], FIELD: key}).encode()
    for content_type in ("application/json", "application/json; charset=utf-8", "Application/Vnd.Shop+JSON"):
        asked = request(("content-type", content_type))
        assert may_hold_key(asked)
        assert key_in_body(asked, body, FIELD) == key
    form = request(("content-type", FORM))
    assert key_in_body(form, urlencode({"a": 1, FIELD: key}).encode(), FIELD) == key


@given(st.binary())
def test_a_body_that_cannot_be_read_has_no_key(body: bytes) -> None:
    for content_type in ("application/json", FORM):
        asked = request(("content-type", content_type))
        assert key_in_body(asked, b"\xff" + body, FIELD) is None


def test_a_deeply_nested_body_has_no_key() -> None:
    assert key_in_body(request(), b"[" * 100_000, FIELD) is None
    assert key_in_body(request(), b'{"a":' * 100_000, FIELD) is None


@pytest.mark.parametrize("body", [b'{"idempotency_key": 5}', b'{"idempotency_key": ["a"]}', b'{"idempotency_key": {}}'])
def test_a_field_that_is_no_text_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidKey, match="not a text"):
        key_in_body(request(), body, FIELD)


def test_a_field_that_was_sent_twice_is_refused() -> None:
    with pytest.raises(InvalidKey, match="more than once"):
        key_in_body(request(("content-type", FORM)), b"idempotency_key=a&idempotency_key=b", FIELD)


def uploaded(*values: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="idempotency_key"\r\n\r\n'
    return b"".join(head + value + b"\r\n" for value in values) + b"--x--\r\n"


def test_a_field_of_an_uploaded_form_holds_the_key() -> None:
    asked = request(("content-type", "multipart/form-data; boundary=x"))
    assert may_hold_key(asked)
    assert key_in_body(asked, uploaded("é".encode()), FIELD) == "é"
    assert key_in_body(asked, uploaded(), FIELD) is None
    with pytest.raises(InvalidKey, match="more than once"):
        key_in_body(asked, uploaded(b"a", b"a"), FIELD)
    with pytest.raises(InvalidKey, match="not a text"):
        key_in_body(asked, uploaded(b"\xff"), FIELD)


def test_other_bodies_are_not_read() -> None:
    assert not may_hold_key(request(("content-type", "multipart/mixed")))
    assert not may_hold_key(request())
