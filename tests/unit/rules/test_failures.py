"""Classification of failures, error texts, and the decision after a failed send."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import PayloadNotDecodable
from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import (
    CODE_LENGTH,
    MESSAGE_LENGTH,
    Classifier,
    DeadReason,
    Failure,
    GiveUp,
    Reason,
    RetryAfter,
    after_failure,
    classify,
    cut,
    reason_code,
    with_place,
)

TRANSIENT = {
    Reason.TIMEOUT,
    Reason.CONNECTION,
    Reason.INTERNAL_ERROR,
    Reason.TARGET_UNAVAILABLE,
    Reason.NOT_TAKEN,
    Reason.REGISTRY_UNAVAILABLE,
}
CONFLICTS = {Reason.IDEMPOTENCY_CONFLICT}
NO_JITTER = 0.5

randoms = st.floats(0, 1, exclude_max=True)


class CardError(Exception):
    pass


class CardDeclinedError(CardError):
    pass


class GatewayError(CardDeclinedError, ConnectionError):
    pass


class TestClassification:
    @pytest.mark.parametrize("code", Reason)
    def test_L_9_built_in_codes(self, code: Reason) -> None:
        expected = Failure.PERMANENT
        if code in TRANSIENT:
            expected = Failure.TRANSIENT
        if code in CONFLICTS:
            expected = Failure.CONFLICT
        assert classify(code) is expected

    def test_L_9_a_code_is_a_plain_string(self) -> None:
        assert classify("MESSAGE_TOO_LARGE") is Failure.PERMANENT
        assert [code.value for code in Reason] == [code.name for code in Reason]

    @given(st.text())
    def test_an_unknown_code_is_transient(self, code: str) -> None:
        known = code in set(Reason)
        assert known or classify(code) is Failure.TRANSIENT

    @pytest.mark.parametrize(
        ("exception", "code"),
        [
            (TimeoutError(), Reason.TIMEOUT),
            (ConnectionError(), Reason.CONNECTION),
            (BrokenPipeError(), Reason.CONNECTION),
            (ValueError("anything else"), Reason.INTERNAL_ERROR),
        ],
    )
    def test_exceptions_have_reason_codes(self, exception: Exception, code: Reason) -> None:
        assert reason_code(exception) == code
        assert classify(exception) is classify(code) is Failure.TRANSIENT

    def test_L_9_users_add_codes(self) -> None:
        mine = Classifier().with_code("CARD_DECLINED", Failure.PERMANENT)
        assert classify("CARD_DECLINED", mine) is Failure.PERMANENT
        assert classify("TIMEOUT", mine) is Failure.TRANSIENT

    def test_L_9_users_override_codes(self) -> None:
        mine = Classifier().with_code(Reason.INVALID_TARGET, Failure.TRANSIENT)
        assert classify(Reason.INVALID_TARGET, mine) is Failure.TRANSIENT

    def test_L_9_users_add_exceptions(self) -> None:
        mine = Classifier().with_exception(CardError, "CARD_DECLINED").with_code("CARD_DECLINED", Failure.PERMANENT)
        assert reason_code(CardDeclinedError(), mine) == "CARD_DECLINED"
        assert classify(CardDeclinedError(), mine) is Failure.PERMANENT

    def test_the_most_specific_class_decides_whatever_came_first(self) -> None:
        general, specific = (CardError, "GENERAL"), (CardDeclinedError, "SPECIFIC")
        for pairs in ((general, specific), (specific, general)):
            mine = Classifier()
            for exception, code in pairs:
                mine = mine.with_exception(exception, code)
            assert reason_code(CardError(), mine) == "GENERAL"
            assert reason_code(CardDeclinedError(), mine) == "SPECIFIC"
            assert reason_code(GatewayError(), mine) == "SPECIFIC"

    def test_with_two_parents_the_method_resolution_order_decides(self) -> None:
        assert reason_code(GatewayError()) == Reason.CONNECTION
        mine = Classifier().with_exception(CardError, "CARD")
        assert reason_code(GatewayError(), mine) == "CARD"

    def test_extending_leaves_the_original_as_it_was(self) -> None:
        original = Classifier()
        original.with_code("MINE", Failure.PERMANENT)
        original.with_exception(CardError, "MINE")
        assert original == Classifier()
        assert classify("MINE") is Failure.TRANSIENT
        assert reason_code(CardError()) == Reason.INTERNAL_ERROR

    @pytest.mark.parametrize("code", ["", "x" * (CODE_LENGTH + 1), "A\0B"])
    def test_a_code_that_cannot_be_stored_is_refused(self, code: str) -> None:
        with pytest.raises(ValueError, match=r"the reason code is .*; give 1 to 64"):
            Classifier().with_code(code, Failure.PERMANENT)
        with pytest.raises(ValueError, match=r"the reason code is .*; give 1 to 64"):
            Classifier().with_exception(CardError, code)


class TestCut:
    def test_L_7_messages_are_cut_to_512_characters(self) -> None:
        assert cut("é" * 600) == "é" * 512
        assert MESSAGE_LENGTH == 512

    def test_characters_of_four_bytes_count_as_one(self) -> None:
        assert cut("📮" * 600) == "📮" * 512

    def test_nul_characters_are_removed_before_cutting(self) -> None:
        assert cut("a\0b\0c", 3) == "abc"

    def test_a_lone_surrogate_becomes_a_question_mark(self) -> None:
        assert cut("broken \ud83d text") == "broken ? text"

    @given(st.text(st.characters(exclude_categories=[])), st.integers(0, 40))
    def test_the_result_can_be_stored(self, text: str, limit: int) -> None:
        result = cut(text, limit)
        assert len(result) <= limit
        assert "\0" not in result
        assert result.encode("utf-8").decode("utf-8") == result
        assert cut(result, limit) == result

    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
    def test_a_text_that_fits_stays_as_it_is(self, text: str) -> None:
        assert cut(text, len(text)) == text


class TestAfterFailure:
    def test_L_7_a_transient_failure_is_retried_after_the_policys_delay(self) -> None:
        decision = after_failure(2, RetryPolicy.worker(), Failure.TRANSIENT, NO_JITTER)
        assert decision == RetryAfter(10)

    def test_L_10_the_last_attempt_ends_dead(self) -> None:
        policy = RetryPolicy.worker()
        assert after_failure(5, policy, Failure.TRANSIENT, NO_JITTER) == RetryAfter(80)
        dead = GiveUp(DeadReason.EXHAUSTED)
        assert after_failure(6, policy, Failure.TRANSIENT, NO_JITTER) == dead

    @pytest.mark.parametrize(
        ("failure", "reason"),
        [
            (Failure.PERMANENT, DeadReason.PERMANENT),
            (Failure.CONFLICT, DeadReason.CONFLICT),
        ],
    )
    def test_L_9_permanent_failures_and_conflicts_are_dead_at_once(self, failure: Failure, reason: DeadReason) -> None:
        assert after_failure(1, RetryPolicy.worker(), failure, NO_JITTER) == GiveUp(reason)

    @given(st.integers(1, 50), st.integers(1, 50), randoms)
    def test_a_transient_failure_is_retried_exactly_while_attempts_are_left(
        self, attempts: int, limit: int, random: float
    ) -> None:
        policy = RetryPolicy.lease(max_attempts=limit)
        decision = after_failure(attempts, policy, Failure.TRANSIENT, random)
        if attempts < limit:
            assert decision == RetryAfter(policy.delay(attempts, random))
        else:
            assert decision == GiveUp(DeadReason.EXHAUSTED)

    @given(st.integers(1, 20))
    def test_a_message_that_always_fails_is_sent_as_often_as_the_policy_says(self, limit: int) -> None:
        policy = RetryPolicy.tray(max_attempts=limit)
        sends = 1
        while isinstance(after_failure(sends, policy, Failure.TRANSIENT, 0), RetryAfter):
            sends += 1
        assert sends == limit

    def test_an_unknown_class_is_a_programming_error(self) -> None:
        with pytest.raises(AssertionError):
            after_failure(1, RetryPolicy(), cast("Failure", "odd"), NO_JITTER)


def test_L_7_a_place_behind_what_an_error_said_is_kept_whole() -> None:
    assert with_place("KeyError: 'x'", "billing.py:14, in bill") == "KeyError: 'x' (billing.py:14, in bill)"
    assert with_place("KeyError: 'x'", "") == "KeyError: 'x'"
    long = with_place("x" * 1000, "billing.py:14, in bill")
    assert len(long) == 512
    assert long.endswith("x (billing.py:14, in bill)")
    assert len(with_place("x" * 1000, "y" * 1000)) == 512


def test_L_9_a_payload_that_cannot_be_decoded_is_dead_at_once_and_others_decoding_errors_are_not() -> None:
    assert reason_code(PayloadNotDecodable("no")) == Reason.UNDECODABLE_PAYLOAD
    assert classify(PayloadNotDecodable("no")) is Failure.PERMANENT
    assert classify(ValueError("an error page is no JSON")) is Failure.TRANSIENT
