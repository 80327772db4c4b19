"""Helpers for tests of applications: an outbox that records; a relay, a consumer and sagas that run on demand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.testing.consuming import InMemoryConsumer
    from postroom.testing.delivering import InMemoryRelay
    from postroom.testing.recording import RecordingOutbox
    from postroom.testing.running_sagas import arun_saga, run_saga
    from postroom.testing.saga_runs import SagaRun
    from postroom.testing.saga_scenarios import every_failure

__all__ = [
    "InMemoryConsumer",
    "InMemoryRelay",
    "RecordingOutbox",
    "SagaRun",
    "arun_saga",
    "every_failure",
    "run_saga",
]

_HOMES = {
    "InMemoryConsumer": "postroom.testing.consuming",
    "InMemoryRelay": "postroom.testing.delivering",
    "RecordingOutbox": "postroom.testing.recording",
    "SagaRun": "postroom.testing.saga_runs",
    "arun_saga": "postroom.testing.running_sagas",
    "every_failure": "postroom.testing.saga_scenarios",
    "run_saga": "postroom.testing.running_sagas",
}


def __getattr__(name: str) -> object:
    """Import a name on first use: pytest loads the plugin in every run, even if nothing uses it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'postroom.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
