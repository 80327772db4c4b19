"""The options of the middleware: checked when the application starts, not by the first request."""

from __future__ import annotations

import re
from dataclasses import fields
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from postroom.errors import InvalidSetting
from postroom.web.idempotency.options import OptionArguments, Options

if TYPE_CHECKING:
    from postroom.web.requests import Request


def test_every_option_can_be_passed_by_name() -> None:
    assert list(OptionArguments.__annotations__) == [field.name for field in fields(Options)]


async def not_awaited(_request: Request) -> str:
    return "acme"


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("conflict_status", 400, "422 or 409"),
        ("conflict_status", 422.0, "422 or 409"),
        ("max_body_bytes", -1, "whole number"),
        ("max_body_bytes", 10.0, "whole number"),
        ("max_body_bytes", True, "whole number"),
        ("max_response_bytes", "1MB", "whole number"),
        ("wait_seconds", float("nan"), "seconds"),
        ("wait_seconds", None, "seconds"),
        ("unrecorded", 503, "[503]"),
        ("unrecorded", "5xx", "[503]"),
        ("unrecorded", ["503"], "[503]"),
        ("unrecorded", [True], "[503]"),
        ("unrecorded", range(5, 6), "[503]"),
        ("unrecorded", iter([503]), "[503]"),
        ("kept_headers", "X-A", "list of names"),
        ("kept_headers", [b"X-A"], "list of names"),
        ("scope", "x", "function"),
        ("scope", not_awaited, "without `async`"),
        ("operation", 5, "function"),
        ("body_field", "", "None"),
        ("body_field", 5, "None"),
        ("pass_large_requests", "no", "True or False"),
        ("required", "POST /x", "list"),
        ("required", [5], "list"),
        ("required", None, "list"),
        ("required", not_awaited, "without `async`"),
        ("optional", 5, "list"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_its_name_its_value_and_a_remedy(
    name: str, value: Any, remedy: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        Options.of({name: value})
    assert str(refused.value).startswith(f"{name} = {value!r} is not valid: ")
    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"requierd": ["POST"]}, "'requierd' is not an option of the idempotency middleware: did you mean required?"),
        ({"zzz": 1}, "there are database, schema"),
        (None, "of the type NoneType"),
    ],
)
def test_an_option_that_is_not_there_is_refused(given: Any, told: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(told)):
        Options.of(given)


def test_what_can_be_is_taken() -> None:
    for unrecorded in ([503], {503}, range(500, 600), range(0), (HTTPStatus.BAD_GATEWAY,)):
        assert Options.of({"unrecorded": unrecorded}).unrecorded == unrecorded
