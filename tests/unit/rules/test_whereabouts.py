"""Where a message stands: one answer for all that can be known about it."""

from __future__ import annotations

from typing import Any

import pytest

from postroom import insight
from postroom.rules.lifecycle import Stored
from postroom.rules.whereabouts import Circumstances, Whereabouts, whereabouts

READY: dict[str, Any] = {"stored": Stored.READY, "relays": 1}
DOWN: dict[str, Any] = {"stored": Stored.READY, "relays": 2, "relays_down": 2}


@pytest.mark.parametrize(
    ("known", "where"),
    [
        ({"outcome": "sent"}, Whereabouts.SENT),
        ({"outcome": "duplicate"}, Whereabouts.SENT),
        ({"outcome": "expired"}, Whereabouts.EXPIRED),
        ({"outcome": "sent", "stored": Stored.DEAD}, Whereabouts.SENT),
        ({}, Whereabouts.NO_DELIVERY),
        ({"stored": Stored.DEAD, "blocked": True, "relays": 1}, Whereabouts.DEAD),
        ({"stored": Stored.SCHEDULED, "due_passed": False, "blocked": True}, Whereabouts.SCHEDULED),
        ({"stored": Stored.RETRY, "due_passed": False, "lane_held": True}, Whereabouts.RETRY),
        ({"stored": Stored.SCHEDULED, "relays": 1}, Whereabouts.NEXT),
        ({"stored": Stored.RETRY}, Whereabouts.NO_RELAY),
        ({"stored": Stored.RETRY, "blocked": True}, Whereabouts.HELD),
        ({**READY, "blocked": True, "lane_held": True, "holder_down": True}, Whereabouts.HELD),
        ({**READY, "taken": True}, Whereabouts.SENDING),
        ({**READY, "taken": True, "relays": 0}, Whereabouts.SENDING),
        ({**READY, "taken": True, "lane_held": True}, Whereabouts.SENDING),
        ({**READY, "lane_held": True}, Whereabouts.QUEUED),
        (READY, Whereabouts.NEXT),
        ({**READY, "relays": 0}, Whereabouts.NO_RELAY),
        (DOWN, Whereabouts.BROKER_DOWN),
        ({**DOWN, "relays_down": 1}, Whereabouts.NEXT),
        ({**DOWN, "taken": True}, Whereabouts.SENDING),
        ({**DOWN, "taken": True, "holder_down": True}, Whereabouts.BROKER_DOWN),
        ({**DOWN, "lane_held": True, "holder_down": True}, Whereabouts.BROKER_DOWN),
        ({**DOWN, "lane_held": True}, Whereabouts.QUEUED),
    ],
)
def test_where_a_message_stands(known: dict[str, Any], where: Whereabouts) -> None:
    assert whereabouts(Circumstances(**known)) is where


def test_each_has_an_explanation() -> None:
    assert set(insight.EXPLANATIONS) == set(Whereabouts)
