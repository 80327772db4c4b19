"""Where a message stands: one answer for all that can be known about it."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.admin.explanations import EXPLANATIONS
from postroom.rules.lifecycle import Stored
from postroom.rules.why_not_sent import Facts, WhyNotSent, why_not_sent

READY: dict[str, Any] = {"stored": Stored.READY, "relays": 1}
DOWN: dict[str, Any] = {"stored": Stored.READY, "relays": 2, "relays_down": 2}


@pytest.mark.parametrize(
    ("known", "where"),
    [
        ({"outcome": "sent"}, WhyNotSent.SENT),
        ({"outcome": "duplicate"}, WhyNotSent.SENT),
        ({"outcome": "expired"}, WhyNotSent.EXPIRED),
        ({"outcome": "sent", "stored": Stored.DEAD}, WhyNotSent.SENT),
        ({}, WhyNotSent.NO_DELIVERY),
        ({"streamed": True, "stream_read": True}, WhyNotSent.IN_STREAM),
        ({"streamed": True, "relays": 1}, WhyNotSent.NO_READER),
        ({"stored": Stored.DEAD, "blocked": True, "relays": 1}, WhyNotSent.DEAD),
        ({"stored": Stored.SCHEDULED, "due_passed": False, "blocked": True}, WhyNotSent.SCHEDULED),
        ({"stored": Stored.RETRY, "due_passed": False, "lane_held": True}, WhyNotSent.RETRY),
        ({"stored": Stored.SCHEDULED, "relays": 1}, WhyNotSent.NEXT),
        ({"stored": Stored.RETRY}, WhyNotSent.NO_RELAY),
        ({"stored": Stored.RETRY, "blocked": True}, WhyNotSent.HELD),
        ({**READY, "blocked": True, "lane_held": True, "holder_down": True}, WhyNotSent.HELD),
        ({**READY, "taken": True}, WhyNotSent.SENDING),
        ({**READY, "taken": True, "relays": 0}, WhyNotSent.SENDING),
        ({**READY, "taken": True, "lane_held": True}, WhyNotSent.SENDING),
        ({**READY, "lane_held": True}, WhyNotSent.QUEUED),
        (READY, WhyNotSent.NEXT),
        ({**READY, "relays": 0}, WhyNotSent.NO_RELAY),
        (DOWN, WhyNotSent.BROKER_DOWN),
        ({**DOWN, "relays_down": 1}, WhyNotSent.NEXT),
        ({**DOWN, "taken": True}, WhyNotSent.SENDING),
        ({**DOWN, "taken": True, "holder_down": True}, WhyNotSent.BROKER_DOWN),
        ({**DOWN, "lane_held": True, "holder_down": True}, WhyNotSent.BROKER_DOWN),
        ({**DOWN, "lane_held": True}, WhyNotSent.QUEUED),
    ],
)
def test_where_a_message_stands(known: dict[str, Any], where: WhyNotSent) -> None:
    assert why_not_sent(Facts(**known)) is where


def test_each_has_an_explanation() -> None:
    assert set(EXPLANATIONS) == set(WhyNotSent)
