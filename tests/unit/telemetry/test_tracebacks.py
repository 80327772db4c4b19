"""Tracebacks: which line is the user's, and what is shown of it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from postroom import Outbox
from postroom.telemetry.tracebacks import LONGEST, raised_at, without_credentials, written

if TYPE_CHECKING:
    from collections.abc import Callable


ENGINE = create_engine("sqlite://", poolclass=NullPool)  # which leaves no connection open behind it


def own() -> None:
    raise KeyError("order_id")


def in_the_standard_library() -> None:
    json.loads("{")


def in_a_package() -> None:
    with ENGINE.begin() as connection:
        connection.execute(text("SELECT no_such"))


class Base(DeclarativeBase):
    pass


class Bill(Base):
    __tablename__ = "no_such_table"
    number: Mapped[int] = mapped_column(primary_key=True)


def in_code_that_a_package_generated() -> None:
    with Session(ENGINE) as session:
        session.add(Bill(number=7))
        session.flush()


def in_postroom() -> None:
    Outbox().add(object(), "orders", {})


def for_another() -> None:
    try:
        own()
    except KeyError as error:
        raise RuntimeError from error


def of(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - any
        function()
    return raised.value


OWN = [own, in_the_standard_library, in_a_package, in_code_that_a_package_generated, in_postroom, for_another]


@pytest.mark.parametrize("function", OWN)
def test_the_place_is_the_last_line_of_the_users_own_code(function: Callable[[], Any]) -> None:
    place = raised_at(of(function))
    line = function.__code__.co_firstlineno
    assert place.startswith(("tests/unit/telemetry/test_tracebacks.py:", "/"))
    assert place.endswith(f", in {function.__name__}")
    assert line < int(place.rpartition(":")[2].partition(",")[0]) < line + 6


async def test_a_call_that_did_not_end_in_time_is_found_where_it_waited() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.01):
            await waits()
    assert raised_at(raised.value.with_traceback(None)).endswith(", in waits")


def test_where_only_libraries_took_part_it_is_the_first_of_them_and_without_a_traceback_it_is_nowhere() -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads("{")
    inside = raised.value.with_traceback(raised.value.__traceback__.tb_next)  # type: ignore[union-attr]  # it has one
    assert raised_at(inside).endswith(", in loads")
    assert raised_at(ValueError("never raised")) == ""


def test_a_traceback_holds_no_variables_no_credentials_and_is_not_endless() -> None:
    secret = "hidden"  # noqa: S105 - a variable's value

    def fail() -> None:
        local = secret * 2
        raise ValueError("amqps://guest:word@host/vhost " + str(len(local)))

    shown = written(of(fail))
    assert "amqps://***@host/vhost 12" in shown
    assert "hidden" * 2 not in shown
    assert len(written(ValueError("x" * 2 * LONGEST))) == LONGEST


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("nats://a:b@host, nats://token@other", "nats://***@host, nats://***@other"),
        ("nats://host:4222 said user@example", "nats://host:4222 said user@example"),
        ("https://host/path/a@b", "https://host/path/a@b"),
    ],
)
def test_credentials_are_taken_out_of_urls(given: str, shown: str) -> None:
    assert without_credentials(given) == shown
