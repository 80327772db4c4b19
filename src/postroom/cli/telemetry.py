"""Telemetry of the long-running commands: logs always; traces, metrics and probes on request."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, NamedTuple

from postroom.settings import Settings
from postroom.telemetry.events import Hook, all_of


class Telemetry(NamedTuple):
    """A hook for relays or consumers, and what serves metrics and probes while they run."""

    hook: Hook
    serving: AbstractAsyncContextManager[Any]


def telemetry(settings: Settings) -> Telemetry:
    """Logs; traces and metrics if OpenTelemetry's launcher has loaded it; metrics and probes if there is a port.

    Raises `DriverMissing` if there is a port but no prometheus_client.
    """
    from postroom.telemetry.logs import Records, structured

    as_json = None if settings.log_format is None else settings.log_format == "json"
    hooks: list[Hook] = [structured(json=as_json, level=settings.log_level, tracebacks=settings.tracebacks)]
    pythons = logging.getLogger("postroom")
    for one in [one for one in pythons.handlers if isinstance(one, Records)]:
        pythons.removeHandler(one)
    if not pythons.hasHandlers():  # the application has not configured any
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
    """Whether OpenTelemetry has somewhere to send metrics to. Otherwise nothing is counted for it."""
    if "opentelemetry.sdk.metrics" not in sys.modules:
        return False
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider

    return isinstance(metrics.get_meter_provider(), MeterProvider)
