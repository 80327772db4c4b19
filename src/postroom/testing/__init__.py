"""What your own tests need: an outbox that remembers; a relay and a consumer that work when they are told."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.testing.consuming import InMemoryConsumer
    from postroom.testing.delivering import InMemoryRelay
    from postroom.testing.recording import RecordingOutbox

__all__ = ["InMemoryConsumer", "InMemoryRelay", "RecordingOutbox"]

_HOMES = {
    "InMemoryConsumer": "postroom.testing.consuming",
    "InMemoryRelay": "postroom.testing.delivering",
    "RecordingOutbox": "postroom.testing.recording",
}


def __getattr__(name: str) -> object:
    """Load a name when it is first used: pytest loads the plugin in every run, also where nobody asks for it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'postroom.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
