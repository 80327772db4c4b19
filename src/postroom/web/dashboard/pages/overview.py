"""The overview: what waits, what fails, who is alive, and what needs somebody."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from postroom.web.dashboard.charts import Bar

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroom.web.dashboard.visit import Visit

RANGES = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
}
FLOW_CACHED = 3.0


async def overview(visit: Visit) -> Response:
    """The first page."""
    span = visit.params.one_of("range", *RANGES)
    queue = visit.params.text("queue", 255)
    flow = await visit.database.shared(
        ("flow", span, queue), FLOW_CACHED, lambda admin: admin.flow(since=RANGES[span], queue=queue)
    )
    bars = [Bar(bucket.start, bucket.done, bucket.failed) for bucket in flow.buckets]
    done, failed = sum(bar.good for bar in bars), sum(bar.bad for bar in bars)
    return await visit.page(
        "overview",
        span=span,
        spans=list(RANGES),
        flow=flow,
        bars=bars,
        done=done,
        failed=failed,
        per_second=done / RANGES[span].total_seconds(),
    )
