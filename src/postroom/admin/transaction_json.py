"""Results about two-phase commits in the form that `--json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.admin.transaction_steps import TransactionDetails
    from postroom.store.admin.transactions import ListedTransaction, TransactionCount


def transaction_json(told: ListedTransaction) -> dict[str, Any]:
    """One transaction of a list."""
    return {
        "id": told.id,
        "state": told.state.value,
        "decision": told.decision.name.lower(),
        "participants": dict(told.participants),
        "missing": list(told.missing),
        "deadline": told.deadline,
        "past_deadline": told.past_deadline,
        "decided_at": told.decided_at,
        "settled_at": told.settled_at,
        "age_seconds": told.age_seconds,
        "problem": told.problem,
    }


def transaction_details_json(told: TransactionDetails) -> dict[str, Any]:
    """One transaction with everything about it."""
    return {
        **transaction_json(told.transaction),
        "explanation": told.explanation,
        "recovery": None if told.recovery is None else asdict(told.recovery),
        "history": [
            {"at": entry.at, "action": entry.action, "actor": entry.actor, "reason": entry.reason}
            for entry in told.history
        ],
    }


def transaction_counts_json(counts: Sequence[TransactionCount]) -> dict[str, dict[str, Any]]:
    """By state."""
    return {one.state.value: {"count": one.count, "oldest_seconds": one.oldest_seconds} for one in counts}
