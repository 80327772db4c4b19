"""Screening: of what was claimed, settle what must never be sent, and keep back what must not be sent now."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from postroom.rules.failures import Reason
from postroom.rules.lifecycle import ClaimLimits, Transition, split_batch
from postroom.store.outbox.leases import Claim, Claimed, Dead, Expired, GivenBack, Settlement
from postroom.store.sql.rows import Unreadable

if TYPE_CHECKING:
    from collections.abc import Collection

    from postroom.store.outbox.settlements import SettlementWriter
    from postroom.store.sql.steps import Steps

ABANDONED = "claimed again and again and never settled: its worker may have died of it"


class Screening:
    """What every claim passes, of rows and of lanes, before anything is handed out."""

    def __init__(self, settlements: SettlementWriter, limits: ClaimLimits) -> None:
        self._settlements = settlements
        self._limits = limits

    def screen(self, claimed: list[Claimed], expired: Collection[int]) -> Steps[Claim]:
        """The claim that these deliveries make, given the positions of those that have expired.

        What is past its expiry, has no message or was claimed too often is settled when this returns.
        """
        limits = self._limits
        most_claims = max(map(attrgetter("claims"), claimed), default=0)
        if not expired and most_claims <= limits.alone_after and not any(map(_is_unreadable, claimed)):
            return Claim(claimed, [], len(claimed))
        settled: list[Settlement] = []
        sendable: list[Claimed] = []
        unsure: set[int] = set()
        for one in claimed:
            if isinstance(one.message, Unreadable):
                settled.append(_dead(one, one.message.code, one.message.problem, Transition.ORPHAN))
                unsure.add(one.lane)
            elif one.ordered and one.lane in unsure:
                continue  # it may have the same key, which may be unreadable: the next read will tell
            elif one.position in expired:
                settled.append(Expired(one))
            else:
                sendable.append(one)
        split = split_batch([one.claims for one in sendable], limits, [one.message.key for one in sendable])
        settled += [_dead(sendable[index], Reason.LEASE_EXPIRED, ABANDONED, Transition.ABANDON) for index in split.dead]
        # A lane's messages have no lease of their own to give back.
        given_back = [GivenBack(sendable[index]) for index in split.give_back if not sendable[index].ordered]
        lost = yield from self._settlements.settle([*settled, *given_back])
        gone = {one.lease for one in lost}
        messages = [sendable[index] for index in split.send]
        alone = any(one.claims > limits.alone_after for one in messages)
        done = {one.lease for one in messages} | {one.claimed.lease for one in settled}
        return Claim(
            messages,
            [one for one in settled if one.claimed.lease not in gone],
            len(claimed),
            alone=alone,
            kept_back=[one for one in claimed if one.ordered and one.lease not in done],
        )


def _is_unreadable(claimed: Claimed) -> bool:
    return type(claimed.message) is Unreadable


def _dead(claimed: Claimed, code: str, problem: str, transition: Transition) -> Dead:
    return Dead(claimed, code, problem, attempted=False, transition=transition)
