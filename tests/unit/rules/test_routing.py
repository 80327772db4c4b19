"""Patterns of topics: which one decides, and the queues that they name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.routing import (
    ANYTHING,
    LONGEST_QUEUE,
    Routing,
    best_pattern,
    expression,
    is_parked,
    is_routed,
    matches,
    place_of_source,
    queue_of_consumer,
    queue_of_pattern,
)

words = st.text("ab.*[\n", max_size=8)
patterns = words.filter(bool)


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("orders", "orders"),
        ("orders.*", "orders.created"),
        ("orders.*", "orders."),
        ("*.created", "orders.eu.created"),
        ("*", "anything at all"),
        ("*", ""),
        ("a*c*e", "abcde"),
        ("*", "two\nlines"),
    ],
)
def test_a_star_stands_for_any_characters(pattern: str, topic: str) -> None:
    assert matches(pattern, topic)


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [("orders", "orders.created"), ("orders.*", "orders"), ("orders.*", "Orders.created"), ("a?", "ab"), ("[ab]", "a")],
)
def test_all_else_stands_for_itself(pattern: str, topic: str) -> None:
    assert not matches(pattern, topic)


@given(st.lists(words))
def test_what_stands_between_the_stars_is_all_that_matters(parts: list[str]) -> None:
    plain = [part.replace("*", "") for part in parts]
    assert matches("*".join(plain), "".join(plain))
    assert matches("*".join(plain), "-".join(plain))


@given(words, words)
def test_it_is_what_its_regular_expression_says(pattern: str, topic: str) -> None:
    assert matches(pattern, topic) is (re.fullmatch(expression(pattern), topic, re.DOTALL) is not None)


class TestBestPattern:
    @given(st.lists(patterns), words)
    def test_it_matches_and_none_that_matches_is_longer(self, given: list[str], topic: str) -> None:
        best = best_pattern(given, topic)
        matching = [pattern for pattern in given if matches(pattern, topic)]
        if best is None:
            assert topic not in given
            assert not matching
        else:
            assert best == topic or len(best) == max(map(len, matching))

    @given(st.lists(patterns), words)
    def test_the_order_in_which_they_are_given_does_not_matter(self, given: list[str], topic: str) -> None:
        assert best_pattern(given, topic) == best_pattern(given[::-1], topic)

    def test_the_topic_itself_wins_over_a_longer_pattern(self) -> None:
        assert best_pattern(["pay", "*p*a*y*"], "pay") == "pay"

    def test_the_longest_wins_over_the_others(self) -> None:
        assert best_pattern(["*", "pay.*", "pay.eu.*"], "pay.eu.x") == "pay.eu.*"

    def test_none_is_none(self) -> None:
        assert best_pattern(["pay.*"], "orders") is None


class TestQueues:
    @given(st.text(min_size=1, max_size=255))
    def test_every_pattern_names_a_queue_that_every_database_takes(self, pattern: str) -> None:
        queue = queue_of_pattern(pattern)
        assert re.fullmatch(r"[!-~]+", queue)
        assert len(queue) <= LONGEST_QUEUE
        assert is_routed(queue)

    @given(st.sets(st.text(min_size=1, max_size=80), max_size=20))
    def test_no_two_patterns_share_one(self, several: set[str]) -> None:
        assert len({queue_of_pattern(pattern) for pattern in several}) == len(several)

    def test_a_plain_pattern_can_be_read_in_it(self) -> None:
        assert queue_of_pattern("payments.*") == "topic:payments.*"

    @pytest.mark.parametrize("queue", ["default", "handlers", "saga:topic:x"])
    def test_other_queues_are_not_sorted_into(self, queue: str) -> None:
        assert not is_routed(queue)


@given(st.lists(patterns), words)
def test_every_topic_has_a_queue(given: list[str], topic: str) -> None:
    routing = Routing(given)
    best = best_pattern([*given, ANYTHING], topic)
    assert best is not None
    assert routing.queue_of(topic) == routing.queues[best]
    assert routing.queue_of(topic) == routing.queue_of(topic)


def test_a_consumers_queue_has_its_name_and_is_none_of_topics() -> None:
    assert queue_of_consumer("billing") == "handler:billing"
    long = [queue_of_consumer("b" * 200), queue_of_consumer("b" * 201)]
    assert len(set(long)) == 2
    assert all(len(one) <= LONGEST_QUEUE and not is_routed(one) for one in long)


def test_what_a_consumer_receives_from_has_a_name_beside_its_queue() -> None:
    assert place_of_source("billing") == "source:billing"
    assert not is_routed(place_of_source("billing"))


def test_what_waits_for_a_handler_is_told_from_what_waits_for_a_relay() -> None:
    assert is_parked(queue_of_consumer("billing"))
    assert not is_parked(queue_of_pattern("orders.*"))
    assert not is_parked("default")
