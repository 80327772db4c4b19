"""Visit every state that a model can reach, and say which one is wrong, or cannot come to its end."""

import gc
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

World = TypeVar("World", bound=Hashable)


@dataclass(frozen=True)
class Model(Generic[World]):
    """What can happen, and what must not."""

    first: World
    changes: Callable[[World], Iterable[tuple[str, World, bool]]]
    """What can happen next: its name, the state after it, and whether it need not happen.

    Without what need not happen, everything must still come to its end.
    """
    in_order: Callable[[World], World]
    """The one state that stands for all that differ in names alone."""
    wrong_with: Callable[[World], str]
    """What must never be; empty if nothing is wrong."""
    is_end: Callable[[World], bool]


@dataclass(frozen=True)
class Visited(Generic[World]):
    """The result of a search."""

    states: int
    ends: frozenset[World]
    wrong: str = ""
    """What is wrong, if anything, and how it came about."""


def visit(model: Model[World]) -> Visited[World]:
    """Visit every state that can be reached; stop at the first that is wrong."""
    gc.disable()  # nothing here refers to itself, and to look through a million states again and again takes long
    try:
        return _visit(model)
    finally:
        gc.enable()


def _visit(model: Model[World]) -> Visited[World]:
    numbers = {model.first: 0}  # a state goes by its number, because to hash and compare states is what takes long
    worlds = [model.first]
    came_from: list[tuple[int, str]] = [(0, "")]
    leads_to_it: list[list[int]] = [[]]
    ends: set[int] = set()

    def visited(wrong: str) -> Visited[World]:
        return Visited(len(worlds), frozenset(worlds[number] for number in ends), wrong)

    for number, world in enumerate(worlds):  # which grows meanwhile
        if model.is_end(world):
            ends.add(number)
        for name, changed, need_not_happen in model.changes(world):
            after = model.in_order(changed)
            found = numbers.setdefault(after, len(worlds))
            is_new = found == len(worlds)
            if is_new:
                worlds.append(after)
                came_from.append((number, name))
                leads_to_it.append([])
            if not need_not_happen:
                leads_to_it[found].append(number)
            if is_new and (problem := model.wrong_with(after)):
                return visited(f"{problem}\n{_story(worlds, came_from, found)}")
    stuck = _first_stuck(leads_to_it, ends)
    return visited("" if stuck is None else f"stuck for ever\n{_story(worlds, came_from, stuck)}")


def _first_stuck(leads_to_it: Sequence[Sequence[int]], ends: Iterable[int]) -> int | None:
    """A state from which no end can be reached, if nothing happens that need not; the earliest found."""
    can_end = set(ends)
    left = list(can_end)
    while left:
        for before in leads_to_it[left.pop()]:
            if before not in can_end:
                can_end.add(before)
                left.append(before)
    return next((number for number in range(len(leads_to_it)) if number not in can_end), None)


def _story(worlds: Sequence[Hashable], came_from: Sequence[tuple[int, str]], number: int) -> str:
    told = [str(worlds[number])]
    while number:
        number, name = came_from[number]
        told.append(name)
    return "\n".join(reversed(told))
