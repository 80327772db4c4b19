"""What all instances of one saga that run in this process have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Tracer

    from postroom.rules.failures import Classifier
    from postroom.saga.running.journal import Journal
    from postroom.saga.running.reports import Reports
    from postroom.saga.saga import Saga
    from postroom.store.outbox.leases import Claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The saga, and what it runs with."""

    saga: Saga[Any]
    journal: Journal
    reports: Reports
    classifier: Classifier
    worker: str
    is_stopping: Callable[[], bool] = lambda: False
    replace: Callable[[Claimed, Claimed], object] = lambda _old, _new: None
    """Learns under which claim an instance goes on."""
    on_parked: Callable[[Claimed, str, str], object] = lambda _claimed, _code, _text: None
    """Learns why an instance was parked."""
    tracer: Tracer | None = None
    """Makes the spans of steps; by default, that of the provider in force."""
