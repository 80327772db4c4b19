"""The transition table, the state that is derived, and the claims rule."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.lifecycle import (
    BatchSplit,
    ClaimLimits,
    Handling,
    OutcomeCode,
    State,
    Stored,
    Transition,
    handling,
    holding_states,
    split_batch,
    states_of,
    status,
)
from postroom.rules.ordering import Order

EVERY_STATE: tuple[State | None, ...] = (None, *State)
UNSETTLED = {State.PENDING, State.SENDING, State.WAITING}

claim_counts = st.lists(st.integers(0, 9), max_size=12)
keyed_claims = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([None, "a", "b", "c"])), max_size=12)


def after(transition: Transition, state: State | None) -> State | None:
    """Where the transition leads from a state that it applies to."""
    assert state in transition.sources
    return transition.target


def leading_to(target: State | None) -> set[Transition]:
    return {transition for transition in Transition if transition.target is target}


def leaving(source: State) -> set[Transition]:
    return {transition for transition in Transition if source in transition.sources}


class TestTransitions:
    def test_L_1_states_have_the_unified_names(self) -> None:
        assert [state.value for state in State] == [
            "pending",
            "sending",
            "waiting",
            "sent",
            "dead",
            "expired",
        ]

    def test_L_1_every_transition_is_named_once(self) -> None:
        assert len(Transition.__members__) == len(list(Transition)) == 20
        assert len({transition.meaning for transition in Transition}) == 20

    def test_L_1_the_arrows_of_the_specification_exist(self) -> None:
        assert after(Transition.CLAIM, State.PENDING) is State.SENDING
        assert after(Transition.CONFIRM, State.SENDING) is State.SENT
        assert after(Transition.FAIL, State.SENDING) is State.WAITING
        assert after(Transition.COME_DUE, State.WAITING) is State.PENDING
        assert after(Transition.EXHAUST, State.SENDING) is State.DEAD
        assert after(Transition.REQUEUE, State.DEAD) is State.PENDING
        assert after(Transition.SCHEDULE, None) is State.WAITING
        assert after(Transition.DISCARD, State.DEAD) is None
        assert after(Transition.CANCEL, State.WAITING) is None

    def test_only_a_claim_starts_a_send(self) -> None:
        assert leading_to(State.SENDING) == {Transition.CLAIM}

    def test_only_what_was_claimed_becomes_sent_or_dead(self) -> None:
        for transition in leading_to(State.SENT) | leading_to(State.DEAD):
            assert transition.sources == {State.SENDING}

    def test_L_15_nothing_unsettled_is_ever_removed_but_by_an_operator(self) -> None:
        for transition in leading_to(None) - {Transition.CANCEL}:
            assert not transition.sources & UNSETTLED

    def test_what_is_sent_or_expired_never_comes_back(self) -> None:
        for state in (State.SENT, State.EXPIRED):
            assert leaving(state) == {Transition.CLEAN_UP}

    def test_L_10_a_dead_message_moves_only_by_an_operator(self) -> None:
        assert leaving(State.DEAD) == {Transition.REQUEUE, Transition.DISCARD}

    @given(st.data())
    def test_any_history_stays_inside_the_table(self, data: st.DataObject) -> None:
        state: State | None = None
        for _ in range(20):
            legal = [each for each in Transition if state in each.sources]
            assert legal, f"no way out of {state}"
            state = after(data.draw(st.sampled_from(legal)), state)
            assert state in EVERY_STATE

    def test_every_state_can_be_reached_from_nothing(self) -> None:
        reached: set[State | None] = {None}
        for _ in Transition:
            reached |= {each.target for each in Transition if each.sources & reached}
        assert reached == set(EVERY_STATE)


class TestRows:
    """What transitions mean for delivery rows."""

    @pytest.mark.parametrize("transition", Transition)
    def test_L_1_a_transition_applies_to_the_rows_that_can_show_one_of_its_sources(
        self, transition: Transition
    ) -> None:
        for stored in Stored:
            assert (stored in transition.stored) == bool(transition.sources & states_of(stored))

    @pytest.mark.parametrize("transition", Transition)
    def test_L_1_what_a_transition_writes_shows_its_target(self, transition: Transition) -> None:
        if transition.becomes is None:
            assert transition.target in {None, State.SENT, State.EXPIRED}
        else:
            assert transition.target in states_of(transition.becomes)

    def test_a_row_shows_what_its_due_time_and_its_lease_make_of_it(self) -> None:
        assert {stored: states_of(stored) for stored in Stored} == {
            Stored.READY: {State.PENDING, State.SENDING},
            Stored.SCHEDULED: {State.WAITING, State.PENDING},
            Stored.RETRY: {State.WAITING, State.PENDING},
            Stored.DEAD: {State.DEAD},
        }

    def test_what_is_settled_was_ready_and_what_comes_due_was_not(self) -> None:
        assert Transition.CONFIRM.stored == (Stored.READY,)
        assert Transition.COME_DUE.stored == (Stored.SCHEDULED, Stored.RETRY)
        assert Transition.CANCEL.stored == (Stored.READY, Stored.SCHEDULED, Stored.RETRY)
        assert Transition.REQUEUE.stored == (Stored.DEAD,)
        assert Transition.ADD.stored == Transition.CLEAN_UP.stored == ()

    def test_L_8_retries_hold_their_key_and_the_dead_do_unless_they_are_skipped(self) -> None:
        assert holding_states(Order.HOLD) == (Stored.RETRY, Stored.DEAD)
        assert holding_states(Order.SKIP) == (Stored.RETRY,)

    def test_an_unknown_order_is_a_programming_error(self) -> None:
        with pytest.raises(AssertionError):
            holding_states(cast("Order", "sideways"))


class TestStatus:
    def test_the_stored_numbers_are_those_of_the_tables(self) -> None:
        assert {stored.name: stored.value for stored in Stored} == {
            "READY": 0,
            "SCHEDULED": 1,
            "RETRY": 2,
            "DEAD": 3,
        }

    @pytest.mark.parametrize("due_passed", [False, True])
    def test_L_1_ready_is_sending_while_leased_and_pending_otherwise(self, *, due_passed: bool) -> None:
        assert status(Stored.READY, due_passed=due_passed, leased=True) is State.SENDING
        assert status(Stored.READY, due_passed=due_passed, leased=False) is State.PENDING

    @pytest.mark.parametrize("stored", [Stored.SCHEDULED, Stored.RETRY])
    @pytest.mark.parametrize("leased", [False, True])
    def test_L_1_scheduled_and_failed_wait_until_they_are_due(self, stored: Stored, *, leased: bool) -> None:
        assert status(stored, due_passed=False, leased=leased) is State.WAITING
        assert status(stored, due_passed=True, leased=leased) is State.PENDING

    @pytest.mark.parametrize("due_passed", [False, True])
    @pytest.mark.parametrize("leased", [False, True])
    def test_L_1_dead_is_dead_whatever_the_clock_says(self, *, due_passed: bool, leased: bool) -> None:
        assert status(Stored.DEAD, due_passed=due_passed, leased=leased) is State.DEAD

    def test_an_unknown_number_is_a_programming_error(self) -> None:
        with pytest.raises(AssertionError):
            status(cast("Stored", 4), due_passed=True, leased=False)


def test_L_13_outcome_codes_are_stable() -> None:
    assert [outcome.value for outcome in OutcomeCode] == [
        "outbox_flush_success",
        "outbox_flush_retry",
        "outbox_flush_dead",
        "outbox_flush_conflict",
        "outbox_flush_dedup_hit",
        "outbox_flush_db_timeout",
        "outbox_flush_db_error",
    ]


class TestClaims:
    @pytest.mark.parametrize(
        ("claims", "expected"),
        [
            (1, Handling.NORMAL),
            (3, Handling.NORMAL),
            (4, Handling.ALONE),
            (6, Handling.ALONE),
            (7, Handling.DEAD),
        ],
    )
    def test_L_7_claimed_again_and_again_is_sent_alone_and_then_dead(self, claims: int, expected: Handling) -> None:
        assert handling(claims) is expected

    @given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 60))
    def test_more_claims_are_never_treated_more_lightly(self, alone_after: int, more: int, claims: int) -> None:
        limits = ClaimLimits(alone_after, alone_after + more)
        severity = list(Handling)
        now, next_time = handling(claims, limits), handling(claims + 1, limits)
        assert severity.index(next_time) >= severity.index(now)

    @given(st.integers(0, 20), st.integers(1, 20))
    def test_a_message_is_always_sent_alone_before_it_goes_dead(self, alone_after: int, more: int) -> None:
        limits = ClaimLimits(alone_after, alone_after + more)
        assert handling(limits.dead_after, limits) is Handling.ALONE

    @pytest.mark.parametrize(("alone_after", "dead_after"), [(-1, 6), (6, 6), (7, 6)])
    def test_limits_that_make_no_sense_are_refused(self, alone_after: int, dead_after: int) -> None:
        with pytest.raises(ValueError, match=f"alone_after={alone_after} and dead_after={dead_after}"):
            ClaimLimits(alone_after, dead_after)


class TestSplitBatch:
    def test_without_a_suspect_everything_is_sent(self) -> None:
        assert split_batch([1, 3, 2]) == BatchSplit(send=(0, 1, 2), give_back=(), dead=())

    def test_L_7_the_first_suspect_is_sent_alone_and_the_rest_given_back(self) -> None:
        assert split_batch([1, 4, 2, 5]) == BatchSplit(send=(1,), give_back=(0, 2, 3), dead=())

    def test_L_7_dead_ones_are_not_sent_and_stop_nobody_without_a_key(self) -> None:
        assert split_batch([1, 7, 2]) == BatchSplit(send=(0, 2), give_back=(), dead=(1,))

    def test_L_16_what_follows_a_dead_one_on_its_key_is_given_back(self) -> None:
        split = split_batch([1, 7, 1, 4, 1], keys=["a", "b", "a", "b", None])
        assert split == BatchSplit(send=(0, 2, 4), give_back=(3,), dead=(1,))

    def test_L_16_a_suspect_does_not_overtake_its_key(self) -> None:
        split = split_batch([1, 1, 4], keys=["a", "b", "b"])
        assert split == BatchSplit(send=(1,), give_back=(0, 2), dead=())

    def test_counts_and_keys_must_belong_together(self) -> None:
        with pytest.raises(ValueError, match="shorter"):
            split_batch([1, 1], keys=["a"])

    @given(claim_counts)
    def test_the_rule_without_keys(self, claims: list[int]) -> None:
        by_handling = {each: tuple(i for i, count in enumerate(claims) if handling(count) is each) for each in Handling}
        split = split_batch(claims)
        assert split.dead == by_handling[Handling.DEAD]
        expected = by_handling[Handling.ALONE][:1] or by_handling[Handling.NORMAL]
        assert split.send == expected

    @given(keyed_claims)
    def test_every_message_is_in_exactly_one_part(self, batch: list[tuple[int, str | None]]) -> None:
        claims, keys = [count for count, _ in batch], [key for _, key in batch]
        split = split_batch(claims, keys=keys)
        everything = [*split.send, *split.give_back, *split.dead]
        assert sorted(everything) == list(range(len(batch)))
        for part in (split.send, split.give_back, split.dead):
            assert list(part) == sorted(part)

    @given(keyed_claims)
    def test_L_16_what_is_sent_of_a_key_is_the_first_of_that_key(self, batch: list[tuple[int, str | None]]) -> None:
        claims, keys = [count for count, _ in batch], [key for _, key in batch]
        split = split_batch(claims, keys=keys)
        for key in ("a", "b", "c"):
            of_key = [index for index in range(len(batch)) if keys[index] == key]
            sent = [index for index in of_key if index in split.send]
            assert sent == of_key[: len(sent)]

    @given(keyed_claims)
    def test_a_suspect_never_travels_with_others(self, batch: list[tuple[int, str | None]]) -> None:
        claims, keys = [count for count, _ in batch], [key for _, key in batch]
        split = split_batch(claims, keys=keys)
        if any(handling(claims[index]) is Handling.ALONE for index in split.send):
            assert len(split.send) == 1

    @given(keyed_claims)
    def test_something_of_every_batch_moves_on(self, batch: list[tuple[int, str | None]]) -> None:
        claims, keys = [count for count, _ in batch], [key for _, key in batch]
        split = split_batch(claims, keys=keys)
        assert bool(split.send or split.dead) == bool(batch)

    @given(st.integers(0, 9))
    def test_L_7_poison_ends_and_costs_its_neighbours_nothing(self, poison: int) -> None:
        """Ten messages, one of which kills the worker that sends it, until it is dead."""
        claims = dict.fromkeys(range(10), 0)
        sent: set[int] = set()
        while claims:
            batch = list(claims)
            for message in batch:
                claims[message] += 1
            split = split_batch([claims[message] for message in batch])
            for index in split.give_back:
                claims[batch[index]] -= 1
            for index in split.dead:
                assert batch[index] == poison
                del claims[batch[index]]
            sending = {batch[index] for index in split.send}
            if poison not in sending:
                sent |= sending
                for message in sending:
                    del claims[message]
        assert sent == set(range(10)) - {poison}
