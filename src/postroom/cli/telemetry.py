"""What a process that works tells of itself: logs always, the rest where it is asked for."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from postroom.settings import Settings
from postroom.telemetry.events import Hook, all_of


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A hook to give to relays or consumers, and what serves while they work."""

    hook: Hook
    serving: AbstractAsyncContextManager[Any]


def telemetry(settings: Settings) -> Telemetry:
    """Logs; what OpenTelemetry wants, where it was loaded before this program, as its launcher does; and pages.

    Pages where there is a port. Raises `DriverMissing` where there is a port and no prometheus_client.
    """
    from postroom.telemetry.logs import Records, structured

    as_json = None if settings.log_format is None else settings.log_format == "json"
    hooks: list[Hook] = [structured(json=as_json, level=settings.log_level, tracebacks=settings.tracebacks)]
    pythons = logging.getLogger("postroom")
    for one in [one for one in pythons.handlers if isinstance(one, Records)]:
        pythons.removeHandler(one)
    if not pythons.hasHandlers():  # the application has not said where they go
        pythons.addHandler(Records(json=as_json, level=settings.log_level))
    if "opentelemetry.trace" in sys.modules:
        from postroom.telemetry.traces import opentelemetry

        hooks.append(opentelemetry())
    if _counts_elsewhere():
        from postroom.telemetry import metrics

        hooks.append(metrics.opentelemetry())
    serving: AbstractAsyncContextManager[Any] = nullcontext()
    if settings.http_port is not None:
        from postroom.telemetry.health import Health
        from postroom.telemetry.metrics import prometheus
        from postroom.telemetry.probes import Probes, pages, prometheus_page

        health = Health()
        hooks += [health, prometheus()]
        serving = Probes(pages(health, prometheus_page), settings.http_port, settings.http_host)
    return Telemetry(all_of(*hooks), serving)


def _counts_elsewhere() -> bool:
    """Whether OpenTelemetry was given somewhere to send figures to. Without, nothing is counted for it."""
    if "opentelemetry.sdk.metrics" not in sys.modules:
        return False
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider

    return isinstance(metrics.get_meter_provider(), MeterProvider)
