"""Telemetry: relays, consumers and the middleware report events to one hook.

Pass a hook as ``hook=``; combine several with `all_of`. Ready-made hooks:

- `postroom.telemetry.logs.structured`: log lines
- `postroom.telemetry.metrics.prometheus`, `postroom.telemetry.metrics.opentelemetry`: metrics
- `postroom.telemetry.traces.opentelemetry`: spans
- `postroom.telemetry.health.Health`: liveness and readiness, served by `postroom.telemetry.probes.Probes`
"""

from postroom.telemetry.events import (
    DATABASE,
    Added,
    Backlog,
    Beat,
    Cleaned,
    Counted,
    Denied,
    Event,
    Expired,
    Handled,
    Hook,
    HookFailed,
    Keyed,
    LeasesLost,
    Lifecycle,
    NotSettled,
    Phase,
    Postponed,
    Published,
    Raised,
    Reachability,
    Settled,
    TargetChanged,
    all_of,
)
from postroom.telemetry.saga_events import (
    EndedSaga,
    EndedStep,
    SagaParked,
    SagasEnded,
    SagaSignalled,
    SagaStranded,
    SagaTurned,
    SignalEnd,
    StepEnd,
    StepsEnded,
)

__all__ = [
    "DATABASE",
    "Added",
    "Backlog",
    "Beat",
    "Cleaned",
    "Counted",
    "Denied",
    "EndedSaga",
    "EndedStep",
    "Event",
    "Expired",
    "Handled",
    "Hook",
    "HookFailed",
    "Keyed",
    "LeasesLost",
    "Lifecycle",
    "NotSettled",
    "Phase",
    "Postponed",
    "Published",
    "Raised",
    "Reachability",
    "SagaParked",
    "SagaSignalled",
    "SagaStranded",
    "SagaTurned",
    "SagasEnded",
    "Settled",
    "SignalEnd",
    "StepEnd",
    "StepsEnded",
    "TargetChanged",
    "all_of",
]
