"""Log lines of two-phase commits: ids, codes and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.telemetry.transaction_events import TransactionEnd, TransactionEvent, TransactionRecovered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.telemetry.logs import Line

_LEVELS = {
    TransactionEnd.COMMITTED: "info",
    TransactionEnd.ROLLED_BACK: "info",
    TransactionEnd.WAITING: "warning",
    TransactionEnd.QUARANTINED: "error",
}


def transaction_lines(event: TransactionEvent) -> Iterator[Line]:
    """The lines of an event. A scan is worth one only if something is in doubt, or somebody cannot be asked."""
    if isinstance(event, TransactionRecovered):
        fields = {"transaction": event.id, **({"reason_code": event.code} if event.code else {})}
        yield _LEVELS[event.end], f"transaction_{event.end}", fields
        return
    for participant, why in event.unreachable.items():
        yield "warning", "participant_unreachable", {"participant": participant, "reason": why}
    if event.count:
        yield "warning", "transactions_in_doubt", {"count": event.count, "oldest_sec": round(event.oldest, 1)}
