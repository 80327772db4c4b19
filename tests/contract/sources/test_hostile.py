"""One message that cannot be read among many that can: those are handled, and it is a dead letter."""

from __future__ import annotations

import base64
import json
from collections import Counter as Tally
from contextlib import closing
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from postroom import Consumer
from postroom.sources.reading import RAW
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.contract.sources.hostile import HOSTILE

if TYPE_CHECKING:
    from postroom.incoming import Incoming
    from tests.conftest import FreshDatabase
    from tests.contract.sources.receiving import Counter
    from tests.contract.sources.source_rigs import ServerSourceRig

DEAD = """
SELECT o.payload, o.headers, d.error_code, d.error_message FROM {outbox} o JOIN {delivery} d ON d.position = o.position
WHERE d.state = 3 ORDER BY o.position"""


async def test_B_3_what_cannot_be_read_is_a_dead_letter_and_the_others_are_handled(
    server_rig: ServerSourceRig, server_counter: Counter, ready_database: FreshDatabase
) -> None:
    send, hostile = HOSTILE[type(server_rig)]
    good = await server_counter.publish(range(50))
    await send(server_rig, server_counter.topic, hostile)
    good += await server_counter.publish(range(50, 100))
    handled: Tally[str] = Tally()
    odd: list[bytes] = []
    with closing(Service(ready_database("sqlite"))) as service:
        consumer = Consumer("hostile", server_counter.source(), database=service.url, poll_interval_sec=0.02)

        @consumer.handler(server_counter.topic)
        async def handle(message: Incoming) -> None:
            if message.source is None:
                odd.append(message.payload or b"")
            else:
                handled[message.id] += 1

        unreadable = [one for one in hostile if one.raw is not None]
        async with consumer:
            await wait_for(lambda: consumer.report.handled + consumer.report.dead >= 100 + len(hostile))
        statement = DEAD.format(outbox=service.table("outbox"), delivery=service.table("delivery"))
        with service.engine.begin() as connection:
            dead: list[Any] = list(connection.execute(text(statement)))
    assert handled == dict.fromkeys(good, 1)
    assert sorted(odd) == sorted(one.body for one in hostile if one.raw is None)
    assert sorted(row.payload for row in dead) == sorted(one.body for one in unreadable)
    assert {row.error_code for row in dead} == {"UNDECODABLE"}
    assert all(row.error_message.startswith("it cannot be read") for row in dead)
    kept = {row.payload: base64.b64decode(json.loads(row.headers or "{}").get(RAW, "")) for row in dead}
    assert kept == {one.body: one.raw for one in unreadable}
