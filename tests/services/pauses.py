"""How often a test asks whether what it waits for has come."""

from __future__ import annotations

import time

LONGEST = 0.25


def pause(since: float, least: float) -> float:
    """Seconds until it asks again, having begun to ask at this time by `time.monotonic`.

    To ask takes time from what the test waits for. So a test asks for a quarter of its time at most.
    """
    return max(least, min(3 * (time.monotonic() - since), LONGEST))
