"""Wait for answers no longer than a limit: whoever is silent is left behind, and takes no time from the others."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


def answers_within(questions: Mapping[str, Callable[[], T]], seconds: float) -> dict[str, T | Exception]:
    """What each of them returned or raised, all asked at once; a `TimeoutError` for those that said nothing in time."""
    told: SimpleQueue[tuple[str, T | Exception]] = SimpleQueue()

    def ask(name: str, question: Callable[[], T]) -> None:
        try:
            told.put((name, question()))
        except Exception as error:  # noqa: BLE001 - it is the answer
            told.put((name, error))

    for name, question in questions.items():
        Thread(target=ask, args=(name, question), name="postroom-doctor", daemon=True).start()
    deadline = time.monotonic() + seconds
    found: dict[str, T | Exception] = {}
    try:
        while len(found) < len(questions):
            name, answer = told.get(timeout=max(0.0, deadline - time.monotonic()))
            found[name] = answer
    except Empty:
        late = TimeoutError(f"no answer within {seconds:g} s")
        found |= {name: late for name in questions if name not in found}
    return found


def answer_within(question: Callable[[], T], seconds: float) -> T:
    """What it returned. Raises what it raised, or `TimeoutError`."""
    [found] = answers_within({"": question}, seconds).values()
    if isinstance(found, Exception):
        raise found
    return found
