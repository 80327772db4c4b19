"""When a consumer asks its broker for more messages."""


def is_time_to_receive(in_flight: int, capacity: int, *, is_anyone_idle: bool) -> bool:
    """Whether to ask for more, with so many in flight of those that may be.

    Not for each that is done: every question takes a round trip to the broker, and for messages with keys another to
    the database. But whoever has nothing to do waits for none.
    """
    if in_flight >= capacity:
        return False
    return is_anyone_idle or in_flight <= capacity // 2
