"""What a process that works tells of itself: logs always, the rest where it is asked for."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from postroom.settings import Settings
from postroom.telemetry import Hook, all_of


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A hook to give to relays or consumers, and what serves while they work."""

    hook: Hook
    serving: AbstractAsyncContextManager[Any]


def telemetry(settings: Settings) -> Telemetry:
    """Logs; spans, where OpenTelemetry was loaded before this program, as its launcher does; and, with a port, pages.

    Raises `DriverMissing` where there is a port and no prometheus_client.
    """
    from postroom.logs import structured

    hooks: list[Hook] = [structured()]
    if "opentelemetry.trace" in sys.modules:
        from postroom.traces import opentelemetry

        hooks.append(opentelemetry())
    serving: AbstractAsyncContextManager[Any] = nullcontext()
    if settings.http_port is not None:
        from postroom.health import Health
        from postroom.metrics import prometheus
        from postroom.probes import Probes, pages, prometheus_page

        health = Health()
        hooks += [health, prometheus()]
        serving = Probes(pages(health, prometheus_page), settings.http_port, settings.http_host)
    return Telemetry(all_of(*hooks), serving)
