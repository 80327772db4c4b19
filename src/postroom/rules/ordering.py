"""Order by key: which lane a key belongs to, and in which waves a batch may be sent."""

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from enum import StrEnum
from typing import TypeVar

LANES = 16
"""A power of two. It may only change while no keyed message is unsent."""

NO_LANE = -1
"""The lane of messages without a key; they are leased one by one."""

Item = TypeVar("Item")


class Order(StrEnum):
    """What a dead message does to those behind it on its key. One that waits for its retry always holds them."""

    HOLD = "hold"
    SKIP = "skip"


def key_hash(key: str) -> int:
    """Return the first 64 bits of the MD5 of the key in UTF-8, big-endian and signed.

    Every database can compute the same number in SQL. It has 64 bits so that a dead message does not hold back another
    key's messages because of a hash collision.
    """
    digest = hashlib.md5(key.encode("utf-8"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def lane_of(hashed_key: int) -> int:
    """Return the lane, 0 to `LANES - 1`, of a key with this `key_hash`."""
    return hashed_key & (LANES - 1)


def fair_share(workers: int) -> int:
    """Return how many lanes each of the living workers holds at most."""
    return -(-LANES // max(1, workers))


def least_share(workers: int) -> int:
    """Return how many lanes are left for one of the living workers when each of the others holds its fair share."""
    return max(0, LANES - fair_share(workers) * (max(1, workers) - 1))


def lanes_to_release(held: Iterable[int], busy: Collection[int], share: int) -> list[int]:
    """Return those of the held lanes that are more than the share: idle ones first."""
    idle_first = sorted(held, key=lambda lane: lane in busy)
    return idle_first[: max(0, len(idle_first) - share)]


def waves(items: Iterable[Item], key_of: Callable[[Item], Hashable | None]) -> list[list[Item]]:
    """Split a batch into waves in which every key occurs at most once.

    If each wave is confirmed before the next one is sent, no message overtakes another of its key. The batch's order
    is kept inside a wave, every item goes into the earliest possible wave, and items without a key (`None`) all go
    into the first.
    """
    result: list[list[Item]] = []
    next_wave: dict[Hashable, int] = {}
    for item in items:
        key = key_of(item)
        number = 0
        if key is not None:
            number = next_wave.get(key, 0)
            next_wave[key] = number + 1
        if number == len(result):
            result.append([])
        result[number].append(item)
    return result


def places_by_key(keys: Sequence[Hashable | None]) -> list[list[int]]:
    """Return the places of each key's items in a batch, which must follow one another. One without a key stands alone.

    The groups are in the order of their first items.
    """
    groups: dict[tuple[Hashable | None, int | None], list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault((key, place if key is None else None), []).append(place)
    return list(groups.values())
