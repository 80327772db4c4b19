"""Suspects: messages with which a call of the destination failed. Each time fewer of them are sent together.

This finds the one that always breaks the connection, or the call, while what was only sent beside it gets through.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from postroom.store.outbox.leases import Claimed

MOST = 10_000
"""Messages that are remembered, unless more may be in flight at a time. The oldest are forgotten."""
REMEMBERED = 3600.0
"""Seconds for which they are at most: another relay may have sent them since, or an operator discarded them."""
TOGETHER = (32, 4)
"""How many are sent together that failed once, and twice. From the third time on each goes alone."""


class Strike:
    """How often a message could not be handed over, and what the destination has taken since the last time."""

    __slots__ = ("at", "broker_worked", "count", "target_worked", "topic")

    def __init__(self, count: int, at: float, topic: str) -> None:
        self.count = count
        self.at = at
        self.topic = topic
        self.broker_worked = False
        self.target_worked = False


INNOCENT = Strike(0, 0.0, "")


class Suspects:
    """Strikes of messages, by position.

    `in_flight`: how many messages may be at a time. If a part of them were forgotten before they come again, none
    would ever be sent alone.
    """

    def __init__(self, in_flight: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._most = max(MOST, in_flight)
        self._strikes: dict[int, Strike] = {}
        self._unreached: dict[int, Strike] = {}
        """Those of messages with which it was not reached: what it took since says something of these alone."""

    def __bool__(self) -> bool:
        return bool(self._strikes)

    def of(self, one: Claimed) -> Strike:
        """How often this message failed to get through."""
        return self._strikes.get(one.position, INNOCENT)

    def has_failed_again(self, one: Claimed, strikes: int) -> bool:
        """Whether it has more strikes than these, the last for a call that was answered."""
        return self.of(one).count > strikes and one.position not in self._unreached

    def strike(self, claimed: Iterable[Claimed], *, answered: bool = False) -> None:
        """These could not be handed over; `answered`: the destination was there, and failed."""
        now = self._clock()
        for one in claimed:
            if one.position < 0:  # it was in the log alone, and comes again as a row, at another position
                continue
            count = self.of(one).count + 1
            self._forget(one.position)
            self._strikes[one.position] = strike = Strike(count, now, one.message.topic)
            if not answered:
                self._unreached[one.position] = strike
        while len(self._strikes) > self._most:
            self._forget(next(iter(self._strikes)))

    def worked(self, started: float, topics: Collection[str]) -> None:
        """A call that began then was answered, and brought messages of these topics through."""
        for strike in self._unreached.values():
            if strike.at < started:
                strike.broker_worked = True
                strike.target_worked = strike.target_worked or strike.topic in topics

    def clear(self, claimed: Iterable[Claimed]) -> None:
        """These got through, or were refused."""
        for one in claimed:
            self._forget(one.position)

    def divide(self, claimed: Sequence[Claimed]) -> tuple[Sequence[Claimed], Sequence[Claimed]]:
        """Those that have nothing against them, and the others."""
        if not self._strikes:
            return claimed, ()
        innocent = [one for one in claimed if one.position not in self._strikes]
        return innocent, [one for one in claimed if one.position in self._strikes]

    def first_part(self, wave: Sequence[Claimed]) -> Sequence[Claimed]:
        """The first of these that are sent together."""
        self._forget_old()
        if not self._strikes:
            return wave
        count = self.of(wave[0]).count
        most = len(wave) if not count else TOGETHER[count - 1] if count <= len(TOGETHER) else 1
        end = 1
        while end < min(most, len(wave)) and self.of(wave[end]).count == count:
            end += 1
        return wave[:end]

    def _forget_old(self) -> None:
        while self._strikes:
            position, oldest = next(iter(self._strikes.items()))
            if self._clock() < oldest.at + REMEMBERED:
                break
            self._forget(position)

    def _forget(self, position: int) -> None:
        self._strikes.pop(position, None)
        self._unreached.pop(position, None)
