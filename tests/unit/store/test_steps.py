"""Operations as steps: written once, rendered for each driver, pushed by a sync and an async runner."""

from __future__ import annotations

import pytest

from postroom.store.sql.steps import ParamStyle, Query, Result, Steps, _rendered, arun, render, run

TEXT = "SELECT :a::text, :b, :a, '%' FROM t WHERE x = :long_name_1 AND strftime('%H:%M') <> y::jsonb"


@pytest.mark.parametrize(
    ("style", "text", "order"),
    [
        (
            "qmark",
            "SELECT ?::text, ?, ?, '%' FROM t WHERE x = ? AND strftime('%H:%M') <> y::jsonb",
            ("a", "b", "a", "long_name_1"),
        ),
        (
            "format",
            "SELECT %s::text, %s, %s, '%%' FROM t WHERE x = %s AND strftime('%%H:%%M') <> y::jsonb",
            ("a", "b", "a", "long_name_1"),
        ),
        (
            "numeric_dollar",
            "SELECT $1::text, $2, $1, '%' FROM t WHERE x = $3 AND strftime('%H:%M') <> y::jsonb",
            ("a", "b", "long_name_1"),
        ),
    ],
)
def test_a_statement_is_rendered_for_each_parameter_style(style: ParamStyle, text: str, order: tuple[str, ...]) -> None:
    rendered = render(TEXT, style)
    assert (rendered.text, rendered.order) == (text, order)


def test_statements_for_thousands_of_rows_are_not_kept() -> None:
    long = "SELECT " + ", ".join(f":value_{n}" for n in range(5000))
    before = _rendered.cache_info().currsize
    assert len(render(long, "qmark").order) == 5000
    assert _rendered.cache_info().currsize == before
    assert render("SELECT :kept", "qmark") is render("SELECT :kept", "qmark")


class Refused(Exception):
    pass


def operation() -> Steps[list[object]]:
    """Two statements; the second one's error is survived."""
    first = yield Query("first")
    try:
        yield Query("bad")
    except Refused:
        last = yield Query("third")
        return [*first.rows, *last.rows]
    return []


def execute(query: Query) -> Result:
    if query.text == "bad":
        raise Refused
    return Result([(query.text,)])


def test_errors_are_raised_where_the_statement_was_yielded() -> None:
    assert run(operation(), execute) == [("first",), ("third",)]


async def test_errors_are_raised_there_in_async_code_too() -> None:
    async def aexecute(query: Query) -> Result:
        return execute(query)

    assert await arun(operation(), aexecute) == [("first",), ("third",)]


def test_an_error_that_is_not_handled_ends_the_operation() -> None:
    def careless() -> Steps[None]:
        yield Query("bad")

    with pytest.raises(Refused):
        run(careless(), execute)
