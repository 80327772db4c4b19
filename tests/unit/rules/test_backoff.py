"""Retry policies: the delays of every source document, their bounds, and bad values."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.backoff import (
    LONGEST_DELAY,
    DelayTable,
    ExponentialDelay,
    RetryPolicy,
    in_turns,
    no_sooner,
)

NO_JITTER = 0.5
ALMOST_ONE = 1 - 2**-53

randoms = st.floats(0, 1, exclude_max=True)
attempt_counts = st.integers(1, 10_000)
tables = st.lists(st.floats(0, LONGEST_DELAY), min_size=1, max_size=8).map(tuple)


@st.composite
def exponentials(draw: st.DrawFn) -> ExponentialDelay:
    base = draw(st.floats(0.001, 3600))
    return ExponentialDelay(
        base=base,
        cap=draw(st.floats(base, LONGEST_DELAY)),
        factor=draw(st.floats(1, 1e6)),
        jitter=draw(st.floats(0, 1)),
        first_exponent=draw(st.integers(0, 3)),
        whole_seconds=draw(st.booleans()),
    )


def first_delays(policy: RetryPolicy, count: int) -> list[float]:
    return [policy.delay(attempts, NO_JITTER) for attempts in range(1, count + 1)]


class TestTheDocumentsPolicies:
    def test_L_8_worker_is_the_default_and_repeats_its_last_delay(self) -> None:
        assert RetryPolicy() == RetryPolicy.worker()
        assert first_delays(RetryPolicy.worker(), 8) == [5, 10, 20, 40, 80, 160, 160, 160]

    def test_L_8_lease_starts_at_120_and_is_capped_at_3600(self) -> None:
        delays = first_delays(RetryPolicy.lease(), 8)
        assert delays == [120, 240, 480, 960, 1920, 3600, 3600, 3600]

    @pytest.mark.parametrize(
        ("attempts", "least", "most"),
        [
            (1, 84, 156),
            (2, 168, 312),
            (3, 336, 624),
            (4, 672, 1248),
            (5, 1344, 2496),
            (6, 2520, 4680),
            (10_000, 2520, 4680),
        ],
    )
    def test_L_8_lease_jitter_comes_after_the_cap(self, attempts: int, least: int, most: int) -> None:
        policy = RetryPolicy.lease()
        assert policy.delay(attempts, 0) == least
        assert most - 1 <= policy.delay(attempts, ALMOST_ONE) <= most

    @given(attempt_counts, randoms)
    def test_L_8_lease_gives_whole_seconds(self, attempts: int, random: float) -> None:
        assert RetryPolicy.lease().delay(attempts, random).is_integer()

    @given(attempt_counts, randoms)
    def test_L_8_whole_seconds_are_at_least_one(self, attempts: int, random: float) -> None:
        schedule = ExponentialDelay(base=0.01, cap=0.5, jitter=1, whole_seconds=True)
        assert RetryPolicy(schedule).delay(attempts, random) == 1

    def test_L_8_whole_seconds_are_cut_not_rounded(self) -> None:
        schedule = ExponentialDelay(base=1.9, cap=60, whole_seconds=True)
        assert first_delays(RetryPolicy(schedule), 3) == [1, 3, 7]

    def test_L_8_consistency(self) -> None:
        policy = RetryPolicy.consistency()
        assert first_delays(policy, 3) == [0.1, 0.2, 0.4]
        assert policy.delay(100, NO_JITTER) == 10
        assert policy.delay(1, 0) == pytest.approx(0.09)
        assert policy.delay(1, ALMOST_ONE) == pytest.approx(0.11)

    def test_L_8_tray(self) -> None:
        assert first_delays(RetryPolicy.tray(), 8) == [1, 2, 4, 8, 16, 32, 60, 60]

    def test_L_8_dispatch(self) -> None:
        delays = first_delays(RetryPolicy.dispatch(), 10)
        assert delays == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]

    @pytest.mark.parametrize(
        ("policy", "attempts"),
        [
            (RetryPolicy.worker(), 6),
            (RetryPolicy.lease(), 6),
            (RetryPolicy.consistency(), 3),
            (RetryPolicy.tray(), 6),
            (RetryPolicy.dispatch(), 6),
            (RetryPolicy.dispatch(max_attempts=20), 20),
        ],
    )
    def test_L_8_the_number_of_attempts(self, policy: RetryPolicy, attempts: int) -> None:
        assert not policy.exhausted(attempts - 1)
        assert policy.exhausted(attempts)


class TestOwnPolicies:
    def test_a_table_of_own_delays(self) -> None:
        policy = RetryPolicy.table([1, 5, 10], max_attempts=3)
        assert first_delays(policy, 4) == [1, 5, 10, 10]
        assert policy.exhausted(3)

    def test_an_exponential_of_own_values(self) -> None:
        policy = RetryPolicy.exponential(base=1, factor=3, cap=20, jitter=0.5, max_attempts=9)
        assert first_delays(policy, 4) == [1, 3, 9, 20]
        assert policy.delay(1, 0) == 0.5
        assert policy.max_attempts == 9

    def test_one_attempt_means_no_retry(self) -> None:
        assert RetryPolicy.table([1], max_attempts=1).exhausted(1)

    def test_policies_are_values(self) -> None:
        assert RetryPolicy.table([1, 2]) == RetryPolicy.table((1, 2))
        assert len({RetryPolicy.lease(), RetryPolicy.lease(), RetryPolicy.tray()}) == 2


class TestProperties:
    @given(tables, attempt_counts, randoms)
    def test_a_table_gives_nothing_but_its_own_delays(
        self, delays: tuple[float, ...], attempts: int, random: float
    ) -> None:
        expected = delays[attempts - 1] if attempts <= len(delays) else delays[-1]
        assert RetryPolicy.table(delays).delay(attempts, random) == expected

    @given(exponentials(), attempt_counts, randoms)
    def test_a_delay_lies_within_the_jitter_around_the_cap(
        self, schedule: ExponentialDelay, attempts: int, random: float
    ) -> None:
        delay = RetryPolicy(schedule).delay(attempts, random)
        assert type(delay) is float
        assert 0 <= delay <= max(1, schedule.cap * (1 + schedule.jitter))

    @given(exponentials(), attempt_counts, randoms)
    def test_delays_never_shrink_from_one_attempt_to_the_next(
        self, schedule: ExponentialDelay, attempts: int, random: float
    ) -> None:
        policy = RetryPolicy(schedule)
        assert policy.delay(attempts + 1, random) >= policy.delay(attempts, random)

    @given(exponentials(), attempt_counts, st.tuples(randoms, randoms).map(sorted))
    def test_a_greater_random_number_never_gives_a_shorter_delay(
        self, schedule: ExponentialDelay, attempts: int, pair: list[float]
    ) -> None:
        policy = RetryPolicy(schedule)
        assert policy.delay(attempts, pair[0]) <= policy.delay(attempts, pair[1])

    @given(st.floats(1.001, 1e300))
    def test_ten_thousand_attempts_do_not_overflow(self, factor: float) -> None:
        policy = RetryPolicy.exponential(base=1, factor=factor, cap=20)
        assert policy.delay(10_000, NO_JITTER) == 20

    @given(st.integers(1, 100), st.integers(0, 100))
    def test_attempts_run_out_exactly_at_the_limit(self, limit: int, attempts: int) -> None:
        policy = RetryPolicy.worker(max_attempts=limit)
        assert policy.exhausted(attempts) == (attempts >= limit)


class TestBadValues:
    def test_an_empty_table(self) -> None:
        with pytest.raises(ValueError, match="table of delays is empty; give at least one"):
            RetryPolicy.table([])

    @pytest.mark.parametrize("delay", [-1, nan, inf, LONGEST_DELAY * 2])
    def test_a_delay_that_cannot_be_waited(self, delay: float) -> None:
        with pytest.raises(ValueError, match=rf"delay 2 of the table is {delay!r}; give"):
            RetryPolicy.table([1, delay])

    @pytest.mark.parametrize("attempts", [0, -1, nan])
    def test_no_attempts(self, attempts: int) -> None:
        with pytest.raises(ValueError, match=f"max_attempts is {attempts!r}; give 1"):
            RetryPolicy.worker(max_attempts=attempts)

    @pytest.mark.parametrize("base", [0, -1, nan, inf])
    def test_base(self, base: float) -> None:
        with pytest.raises(ValueError, match=f"base is {base!r}; give seconds above 0"):
            RetryPolicy.exponential(base=base, cap=60)

    @pytest.mark.parametrize("cap", [0, 0.5, nan, inf])
    def test_cap(self, cap: float) -> None:
        with pytest.raises(ValueError, match=rf"cap is {cap!r}; give .* the base \(1\)"):
            RetryPolicy.exponential(base=1, cap=cap)

    @pytest.mark.parametrize("factor", [0, 0.9, -2, nan, inf])
    def test_factor(self, factor: float) -> None:
        with pytest.raises(ValueError, match=f"factor is {factor!r}; give 1"):
            RetryPolicy.exponential(base=1, cap=60, factor=factor)

    @pytest.mark.parametrize("jitter", [-0.1, 1.1, 30, nan])
    def test_jitter(self, jitter: float) -> None:
        with pytest.raises(ValueError, match=f"jitter is {jitter!r}; give a fraction"):
            RetryPolicy.exponential(base=1, cap=60, jitter=jitter)

    def test_first_exponent(self) -> None:
        with pytest.raises(ValueError, match="first_exponent is -1; give 0"):
            ExponentialDelay(base=1, cap=60, first_exponent=-1)

    @pytest.mark.parametrize("schedule", [DelayTable(), ExponentialDelay(base=1, cap=60)])
    def test_attempts_that_forget_the_last_failure(self, schedule: DelayTable | ExponentialDelay) -> None:
        with pytest.raises(ValueError, match="attempts is 0; count the send that just"):
            RetryPolicy(schedule).delay(0, NO_JITTER)

    @pytest.mark.parametrize("random", [-0.1, 1, nan])
    def test_a_random_number_out_of_range(self, random: float) -> None:
        with pytest.raises(ValueError, match=f"random is {random!r}; give a number"):
            RetryPolicy().delay(1, random)


class TestWishes:
    @pytest.mark.parametrize(
        ("wished", "delay"),
        [
            *((None, 5.0), (0.0, 5.0), (-1.0, 5.0), (float("nan"), 5.0), (float("-inf"), 5.0), (4.0, 5.0), (7.0, 7.0)),
            *((float("inf"), LONGEST_DELAY), (1e300, LONGEST_DELAY)),
        ],
    )
    def test_L_9_a_broker_may_wish_for_more_time_but_for_no_nonsense(self, wished: float | None, delay: float) -> None:
        assert no_sooner(5.0, wished) == delay


def test_policies_are_compared_by_what_they_say() -> None:
    assert RetryPolicy() == RetryPolicy.worker()
    assert hash(RetryPolicy()) == hash(RetryPolicy.worker())
    assert RetryPolicy() != RetryPolicy.tray()
    assert RetryPolicy() != RetryPolicy(max_attempts=7)
    assert RetryPolicy() != 6


def test_R_9_what_is_expected_to_fail_comes_one_after_another_and_within_a_minute() -> None:
    assert in_turns(3, 0.5) == [1.0, 3.0, 5.0]
    assert in_turns(2, 1000.0) == [1.0, 60.0]
    assert in_turns(0, 1.0) == []
