"""Audit: who did what to which message, written in the transaction of the act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.rules.failures import cut
from postroom.store.sql.dialect import as_json
from postroom.store.sql.operations import chunks
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.sql.names import Names

ACTOR_LENGTH = 255

Entry = tuple[int, str | None, dict[str, Any]]
"""A message's position, its id, and what there is to say."""


def audit(names: Names, action: str, actor: str, entries: Sequence[Entry]) -> Steps[None]:
    """Write an entry for each message."""
    for chunk in chunks(entries):
        params: dict[str, Any] = {"action": action, "actor": cut(actor, ACTOR_LENGTH)}
        for n, (position, message_id, details) in enumerate(chunk):
            params |= {f"position_{n}": position, f"message_{n}": message_id, f"details_{n}": as_json(details)}
        values = ", ".join(f"(:action, :actor, :position_{n}, :message_{n}, :details_{n})" for n in range(len(chunk)))
        table = names.mapping()["audit"]
        yield Query(f"INSERT INTO {table} (action, actor, position, message_id, details) VALUES {values}", params)
