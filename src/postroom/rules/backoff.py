"""Retry policies: how long to wait after a failed attempt, and when to give up."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

DEFAULT_MAX_ATTEMPTS = 6
DEFAULT_DELAYS = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)

LONGEST_DELAY = 365 * 24 * 3600.0
"""Seconds. Much longer ones would overflow a timestamp, and are a mistake anyway."""
SHARE_OF_SUSPECTS = 0.25
"""Of the time in which batches are attempted: how much of it calls may take that are expected to fail."""
SHORTEST_TURN = 1.0
LONGEST_TURN = 60.0


def no_sooner(delay: float, requested: float | None) -> float:
    """Return the delay, or the seconds that a broker requested if that is longer.

    A request that is not a number of seconds (NaN, negative) is ignored; a huge one is cut to the longest delay.
    """
    if requested is None or not requested > delay:
        return delay
    return min(requested, LONGEST_DELAY)


def in_turns(count: int, seconds: float) -> list[float]:
    """In how many seconds each of `count` messages is due, if a call with one is expected to fail after `seconds`.

    So they take no more than their share of the time. None waits for longer than a minute: by then the cause may be
    gone.
    """
    return [min(SHORTEST_TURN + number * seconds / SHARE_OF_SUSPECTS, LONGEST_TURN) for number in range(count)]


@dataclass(frozen=True, slots=True)
class DelayTable:
    """Fixed delays in seconds, one for each failed attempt; the last one repeats."""

    seconds: tuple[float, ...] = DEFAULT_DELAYS

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("the table of delays is empty; give at least one delay in seconds")
        for number, delay in enumerate(self.seconds, start=1):
            if not 0 <= delay <= LONGEST_DELAY:
                raise ValueError(
                    f"delay {number} of the table is {delay!r}; give seconds from 0 to {LONGEST_DELAY:.0f}"
                )

    def delay(self, attempts: int, _random: float) -> float:
        """Return the delay after failed attempt number `attempts`."""
        return float(self.seconds[min(attempts, len(self.seconds)) - 1])


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """Delays that grow by `factor` up to `cap`, then spread by `jitter`.

    The first delay is `base * factor ** first_exponent` seconds. The jitter is a fraction:
    0.1 spreads a delay evenly over ±10 %. It comes after the cap, so that messages which
    failed together do not come back together even when they have reached it; a delay can
    thus exceed the cap by that fraction. `whole_seconds` cuts the result to whole seconds,
    at least 1.
    """

    base: float
    cap: float
    factor: float = 2.0
    jitter: float = 0.0
    first_exponent: int = 0
    whole_seconds: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.base <= LONGEST_DELAY:
            raise ValueError(f"base is {self.base!r}; give seconds above 0, up to {LONGEST_DELAY:.0f}")
        if not self.base <= self.cap <= LONGEST_DELAY:
            raise ValueError(f"cap is {self.cap!r}; give seconds from the base ({self.base!r}) to {LONGEST_DELAY:.0f}")
        if not 1 <= self.factor < float("inf"):
            raise ValueError(f"factor is {self.factor!r}; give 1 (constant delays) or more")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is {self.jitter!r}; give a fraction from 0 to 1 (0.1 is ±10 %)")
        if not self.first_exponent >= 0:
            raise ValueError(
                f"first_exponent is {self.first_exponent!r}; give 0 to start at the base, 1 to start one factor higher"
            )

    def delay(self, attempts: int, random: float) -> float:
        """Return the delay after failed attempt number `attempts`."""
        spread = 1 + self.jitter * (2 * random - 1)
        seconds = self._capped(self.first_exponent + attempts - 1) * spread
        return float(max(1, int(seconds))) if self.whole_seconds else seconds

    def _capped(self, exponent: int) -> float:
        try:
            return float(min(self.base * float(self.factor) ** exponent, self.cap))
        except OverflowError:
            return float(self.cap)


@dataclass(frozen=True, slots=True, eq=False)
class RetryPolicy:
    """How long to wait after each failed attempt, and how many attempts to make.

    The policy only computes: it reads no clock and draws no random number. The default is `RetryPolicy.worker()`.
    Raises `ValueError` for a value that makes no sense.
    """

    schedule: DelayTable | ExponentialDelay = DelayTable()
    max_attempts: int = DEFAULT_MAX_ATTEMPTS

    def __post_init__(self) -> None:
        if not self.max_attempts >= 1:
            raise ValueError(f"max_attempts is {self.max_attempts!r}; give 1 (no retry) or more")

    def __eq__(self, other: object) -> bool:
        """Whether it waits as long and as often: `postroom.RetryPolicy` only adds how functions are retried."""
        if not isinstance(other, RetryPolicy):
            return NotImplemented
        return (self.schedule, self.max_attempts) == (other.schedule, other.max_attempts)

    def __hash__(self) -> int:
        return hash((self.schedule, self.max_attempts))

    def delay(self, attempts: int, random: float) -> float:
        """Return the seconds to wait after `attempts` failed attempts, including the last one.

        `random` is a number in [0, 1); 0.5 gives the delay without jitter.
        """
        if not attempts >= 1:
            raise ValueError(f"attempts is {attempts!r}; count the send that just failed: 1 after the first failure")
        if not 0 <= random < 1:
            raise ValueError(f"random is {random!r}; give a number from 0 up to, not including, 1")
        return self.schedule.delay(attempts, random)

    def exhausted(self, attempts: int) -> bool:
        """Whether no attempt is left after `attempts` failed ones."""
        return attempts >= self.max_attempts

    @classmethod
    def table(cls, delays: Iterable[float], *, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> Self:
        """Wait these seconds in turn; the last delay repeats."""
        return cls(DelayTable(tuple(delays)), max_attempts)

    @classmethod
    def exponential(
        cls,
        *,
        base: float,
        cap: float,
        factor: float = 2.0,
        jitter: float = 0.0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> Self:
        """Wait `base` seconds, then `factor` times longer each time, up to `cap`.

        See `ExponentialDelay` for the values.
        """
        schedule = ExponentialDelay(base=base, cap=cap, factor=factor, jitter=jitter)
        return cls(schedule, max_attempts)

    @classmethod
    def worker(cls, *, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> Self:
        """5, 10, 20, 40, 80, 160 s: the default."""
        return cls(DelayTable(), max_attempts)

    @classmethod
    def lease(cls, *, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> Self:
        """120, 240, 480 s … 3600 s, each ±30 %, in whole seconds.

        The protocol behind it sets no limit to attempts; 6 is our choice.
        """
        schedule = ExponentialDelay(base=60.0, cap=3600.0, jitter=0.3, first_exponent=1, whole_seconds=True)
        return cls(schedule, max_attempts)

    @classmethod
    def consistency(cls, *, max_attempts: int = 3) -> Self:
        """0.1, 0.2, 0.4 s … 10 s, each ±10 %; 3 attempts: for calls that somebody waits for."""
        return cls(ExponentialDelay(base=0.1, cap=10.0, jitter=0.1), max_attempts)

    @classmethod
    def tray(cls, *, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> Self:
        """1, 2, 4 s … 60 s, without jitter.

        The design behind it retries for ever; 6 attempts is our choice.
        """
        return cls(ExponentialDelay(base=1.0, cap=60.0), max_attempts)

    @classmethod
    def dispatch(cls, *, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> Self:
        """2, 4, 8 s … 300 s, without jitter.

        The design behind it leaves the number of attempts open; 6 is our choice.
        """
        return cls(ExponentialDelay(base=1.0, cap=300.0, first_exponent=1), max_attempts)
