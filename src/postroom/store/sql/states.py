"""The stored states of deliveries as SQL. No other module writes their numbers into a statement.

`of` is the alias of the delivery table. The texts are fixed: SQLite takes a partial index only for a condition in the
words of the index's own, so what the schema and the queries say comes from the same function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored, Transition, holding_states
from postroom.rules.ordering import Order

if TYPE_CHECKING:
    from collections.abc import Iterable

_LEAST, _GREATEST = int(min(Stored)), int(max(Stored))


def in_state(state: Stored, of: str = "") -> str:
    return f"{_column(of)} = {int(state)}"


def found_by_key(state: Stored, of: str = "") -> str:
    """`in_state` in words that only the primary key fits, and no partial index.

    Without statistics, PostgreSQL takes a partial index for a small one, and then reads all of it.
    """
    return f"{_column(of)} = (SELECT {int(state)})"


def in_states(states: Iterable[Stored], of: str = "") -> str:
    """One of several states; of a single one, as `in_state`."""
    chosen = list(states)
    return (
        in_state(chosen[0], of) if len(chosen) == 1 else f"{_column(of)} IN ({', '.join(map(str, map(int, chosen)))})"
    )


def ready(of: str = "") -> str:
    """Deliverable now, or leased."""
    return in_state(Stored.READY, of)


def comes_due(of: str = "") -> str:
    """Scheduled, or failed and to be tried again."""
    return before(Transition.COME_DUE, of)


def dead(of: str = "") -> str:
    return in_state(Stored.DEAD, of)


def unsettled(of: str = "") -> str:
    """Whatever the state: in these words the primary key is used, which begins with it."""
    return in_states(Stored, of)


def is_state(of: str = "") -> str:
    """The number has a meaning."""
    return f"{_column(of)} BETWEEN {_LEAST} AND {_GREATEST}"


def is_no_state(of: str = "") -> str:
    return f"{_column(of)} NOT BETWEEN {_LEAST} AND {_GREATEST}"


def holds_key(order: Order, of: str = "") -> str:
    """It holds back what follows on its key.

    Always in the words of the key index's condition. The plus keeps SQLite from taking the primary key instead, and
    reading all that failed for each message.
    """
    all_that_can = in_states(holding_states(Order.HOLD), of)
    return all_that_can if order is Order.HOLD else f"{all_that_can} AND +{in_states(holding_states(order), of)}"


def before(transition: Transition, of: str = "") -> str:
    """The transition applies to it, as far as its row tells."""
    return in_states(transition.stored, of)


def becomes(transition: Transition) -> str:
    """The assignment that makes the transition."""
    return in_state(written_by(transition))


def written_by(transition: Transition) -> Stored:
    """The state that the transition writes; raises where it leaves no delivery."""
    if transition.becomes is None:
        raise ValueError(f"{transition.name} leaves no delivery: delete the row")
    return transition.becomes


def _column(of: str) -> str:
    return f"{of}.state" if of else "state"
