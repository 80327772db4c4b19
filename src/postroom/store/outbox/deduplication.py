"""Deduplication: the same content goes to the same topic once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.ordering import key_hash
from postroom.store.outbox.leases import Claimed, Deduplicated, Duplicate, GivenBack
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postroom.store.outbox.settlements import SettlementWriter
    from postroom.store.sql.operations import Operations


class Deduplication:
    def __init__(self, sql: Operations, settlements: SettlementWriter) -> None:
        self._sql = sql
        self._settlements = settlements

    def deduplicate(
        self, claimed: Sequence[Claimed], in_flight: Collection[tuple[str, str | None]] = ()
    ) -> Steps[Deduplicated]:
        """Settle what was sent before, by topic and digest, and return what to send now.

        Best effort: two that two workers have in flight at the same time are both sent. Of duplicates in one batch the
        first is sent; the others, and those already `in_flight`, are given back and will find its receipt, and so is
        what stands behind them on their key. Knows what was sent since deduplication was switched on.
        """
        answers = yield from self._answers([content_hash(one) for one in claimed])
        send: list[Claimed] = []
        duplicates: list[Duplicate] = []
        later: list[Claimed] = []
        held_keys: set[str | None] = set()
        seen = set(in_flight)
        for one in claimed:
            message = one.message
            content = (message.topic, message.digest)
            if one.ordered and message.key in held_keys:
                later.append(one)
            elif message.digest is not None and content in answers:
                duplicates.append(Duplicate(one, answers[content]))
            elif message.digest is not None and content in seen:
                later.append(one)
                held_keys.add(message.key)
            else:
                send.append(one)
                seen.add(content)
        # A lane's messages have no lease of their own to give back.
        lost = yield from self._settlements.settle([*duplicates, *(GivenBack(one) for one in later if not one.ordered)])
        gone = {one.lease for one in lost}
        return Deduplicated(
            send,
            [one for one in duplicates if one.claimed.lease not in gone],
            [one for one in later if one.lease not in gone],
            lost,
        )

    def _answers(self, hashes: Collection[int]) -> Steps[dict[tuple[str, str | None], str | None]]:
        """The broker's answers to content that was sent. The hash finds a receipt, topic and digest decide."""
        if not hashes:
            return {}
        sql = self._sql
        found = yield Query(
            f"SELECT m.topic, m.digest, r.answer FROM {sql.receipt} r JOIN {sql.outbox} m ON m.position = r.position "
            f"WHERE r.dedup IN ({whole_numbers(sorted(set(hashes)))}) AND r.outcome = 'sent' ORDER BY r.position DESC"
        )
        return {(topic, digest): answer for topic, digest, answer in found.rows}


def content_hash(claimed: Claimed) -> int:
    """The hash by which a receipt is found when the same content goes to the same topic again."""
    return key_hash(f"{claimed.message.topic}\0{claimed.message.digest}")
