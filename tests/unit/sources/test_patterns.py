"""Topics with a star."""

from __future__ import annotations

import pytest

from postroom.sources.nats_setup import covers, durable_name, filters_of
from postroom.sources.patterns import matcher
from postroom.sources.rabbitmq import _routing_key


@pytest.mark.parametrize(
    ("topics", "topic", "matches"),
    [
        (["orders.*"], "orders.created", True),
        (["orders.*"], "orders.a.b", True),
        (["orders.*"], "ordersXcreated", False),
        (["a", "b*"], "bc", True),
        (["a", "b*"], "ab", False),
        (["*"], "anything at all", True),
    ],
)
def test_a_star_stands_for_any_characters(topics: list[str], topic: str, matches: bool) -> None:  # noqa: FBT001 - a parameter of the table
    assert matcher(topics)(topic) is matches


@pytest.mark.parametrize(
    ("topics", "subjects"),
    [
        (["orders.*"], ["orders.>"]),
        (["orders.*.paid"], ["orders.*.paid"]),
        (["*"], [">"]),
        (["*", "a"], [">"]),
        (["orders.*", "orders.created", "payments.done"], ["orders.>", "payments.done"]),
    ],
)
def test_nats_is_given_filters_that_do_not_overlap(topics: list[str], subjects: list[str]) -> None:
    assert filters_of(topics) == subjects


@pytest.mark.parametrize(
    ("wide", "narrow", "does"),
    [
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a.>", False),
        ("a.*.c", "a.b.c", True),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
    ],
)
def test_which_subject_covers_which(wide: str, narrow: str, does: bool) -> None:  # noqa: FBT001 - as above
    assert covers(wide, narrow) is does


def test_a_consumers_name_is_made_one_that_nats_can_have() -> None:
    assert durable_name("billing.v2 *") == "billing_v2__"


@pytest.mark.parametrize(
    ("topic", "kind", "key"),
    [
        ("orders.created", "topic", "orders.created"),
        ("orders.*", "topic", "orders.*.#"),
        ("orders.*.paid", "topic", "orders.*.#.paid"),
        ("*", "topic", "#"),
        ("orders.*", "fanout", "orders.*"),
    ],
)
def test_a_star_in_a_binding_is_one_word_or_more(topic: str, kind: str, key: str) -> None:
    assert _routing_key(topic, kind) == key
