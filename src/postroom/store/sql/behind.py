"""What stands before a delivery on its key, as SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.lifecycle import holding_states
from postroom.store.sql.operations import UNBOUNDED
from postroom.store.sql.states import holds_key, in_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.rules.ordering import Order
    from postroom.store.sql.names import Names

_BEFORE = "b.queue = d.queue AND b.key_hash = d.key_hash AND b.position < d.position"


def is_behind(names: Names, order: Order) -> str:
    """A failed or dead message stands before delivery `d` on its key."""
    each = (f"EXISTS (SELECT 1 FROM {source})" for source in _holding(names, order))
    return f"({' OR '.join(each)})"


def first_before(names: Names, order: Order) -> str:
    """The position of the first failed or dead message before delivery `d` on its key, or NULL."""
    each = [f"(SELECT min(b.position) FROM {source})" for source in _holding(names, order)]
    if len(each) == 1:
        return each[0]
    positions = ", ".join(f"coalesce({one}, {UNBOUNDED})" for one in each)
    return f"nullif(least({positions}), {UNBOUNDED})"


def _holding(names: Names, order: Order) -> Iterator[str]:
    """What to look through. MySQL gets a probe for each state: with several in one it reads all messages of the key."""
    delivery = names.table("outbox_delivery")
    if names.dialect != "mysql":
        yield f"{delivery} b WHERE {_BEFORE} AND {holds_key(order, 'b')}"
        return
    index = names.quoted(names.bare("outbox_delivery_key"))
    for state in holding_states(order):
        yield f"{delivery} b FORCE INDEX ({index}) WHERE {_BEFORE} AND {in_state(state, 'b')}"
