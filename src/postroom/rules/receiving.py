"""When a consumer asks its broker for more messages, for how many, and which of its workers get them."""

from typing import NamedTuple


class Portions(NamedTuple):
    """How many messages a consumer takes."""

    batch: int
    """Received at a time, at most."""
    capacity: int
    """In flight at the same time, at most."""
    together: int
    """Of those received together, so many without a key go to the same worker."""

    def share(self, unkeyed: int, workers: int) -> int:
        """How many go to the worker with the least to do, before one looks again who that is."""
        return max(self.together, unkeyed // (2 * workers))


def portions(batch: int, concurrency: int, *, in_batches: bool) -> Portions:
    """The portions for so many workers; `in_batches`: all handlers take batches, and so each worker gets whole ones."""
    if in_batches:
        return Portions(batch, batch * concurrency, together=batch)
    most = max(batch, concurrency)
    return Portions(most, most, together=1)


def is_time_to_receive(in_flight: int, capacity: int, *, is_anyone_idle: bool) -> bool:
    """Whether to ask for more, with so many in flight of those that may be.

    Not for each that is done: every question takes a round trip to the broker, and for messages with keys another to
    the database. But whoever has nothing to do waits for none.
    """
    if in_flight >= capacity:
        return False
    return is_anyone_idle or in_flight <= capacity // 2
