"""Couriers: publish batches, and decide what becomes of each message."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, assert_never

from postroom.brokers.port import Accepted, Outcome, Refused, Unreached
from postroom.errors import BrokerUnavailable
from postroom.rules import failures
from postroom.rules.ordering import waves
from postroom.store.deliveries import content_hash
from postroom.store.leases import Claimed, Dead, GivenBack, Retry, Sent, Settlement
from postroom.telemetry import Phase

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from postroom.relay.office import Office


class Courier:
    """Carries batches one after another, so that the order within its lanes is kept."""

    def __init__(self, office: Office, batches: asyncio.Queue[tuple[int, list[Claimed]]]) -> None:
        self._office = office
        self._batches = batches

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            read, batch = await self._batches.get()
            await self.carry(read, batch)

    async def carry(self, read: int, batch: list[Claimed]) -> None:
        """Send a batch, in waves where the broker cannot keep the order itself."""
        office = self._office
        alone = office.broker.capabilities.ordered_prefix or not batch[0].ordered
        for wave in [batch] if alone else waves(batch, lambda one: one.message.key):
            now = time.monotonic()
            held = [one for one in wave if office.flight.holds(one, now)]
            office.lost([one for one in wave if not office.flight.holds(one, now)] if len(held) < len(wave) else [])
            sendable = [one for one in held if not office.failed_keys.must_drop(one.message.key, read)]
            if len(sendable) < len(held):
                sending = {one.position for one in sendable}
                office.settle([GivenBack(one) for one in held if one.position not in sending])
            if sendable:
                await self._send(sendable)

    async def _send(self, batch: list[Claimed]) -> None:
        office = self._office
        if office.circuit.is_open and office.circuit.pause():
            office.settle([GivenBack(one) for one in batch])
            return
        started = time.monotonic()
        outcomes = await self._outcomes(batch)
        office.hook(Phase("send", len(batch), time.monotonic() - started))
        settlements = [self._settlement(one, outcome) for one, outcome in zip(batch, outcomes, strict=True)]
        for settlement in settlements:
            if not isinstance(settlement, Sent) and settlement.claimed.message.key is not None:
                office.failed_keys.fail(settlement.claimed.message.key)
        office.settle(settlements)

    async def _outcomes(self, batch: Sequence[Claimed]) -> Sequence[Outcome]:
        """Publish, and give an outcome for each message whatever happens."""
        office = self._office
        try:
            outcomes = await office.broker.publish([one.message for one in batch], office.options.broker_timeout)
        except BrokerUnavailable as error:
            outcomes = [Unreached(str(error))] * len(batch)
        except Exception as error:  # noqa: BLE001 - an adapter's bug must not stop the relay
            code = failures.reason_code(error, office.options.classifier)
            outcomes = [Refused(code, str(error))] * len(batch)
        unreached = next((one for one in outcomes if isinstance(one, Unreached)), None)
        if unreached is None:
            office.circuit.worked()
        else:
            office.circuit.failed(unreached.reason)
        return outcomes

    def _settlement(self, one: Claimed, outcome: Outcome) -> Settlement:
        match outcome:
            case Accepted():
                return Sent(one, outcome.answer, content_hash(one) if self._office.options.dedup else None)
            case Unreached():
                return GivenBack(one)
            case Refused():
                return self._failed(one, outcome)
            case _:
                assert_never(outcome)

    def _failed(self, one: Claimed, refused: Refused) -> Retry | Dead:
        options = self._office.options
        failure = refused.failure or failures.classify(refused.code, options.classifier)
        match failures.after_failure(one.attempts + 1, options.policy, failure, random.random()):  # noqa: S311 - jitter
            case failures.Retry(delay):
                return Retry(one, max(delay, refused.retry_after or 0.0), refused.code, refused.message)
            case failures.Dead():
                return Dead(one, refused.code, refused.message)
