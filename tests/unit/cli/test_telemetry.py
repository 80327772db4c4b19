"""What a process tells of itself: logs always, the rest where it is asked for."""

from __future__ import annotations

import importlib
import sys

import pytest

from postroom.cli.relay import _ports
from postroom.cli.telemetry import telemetry
from postroom.errors import DriverMissing, InvalidSetting
from postroom.settings import Settings
from postroom.telemetry.events import listeners, wants_counts
from postroom.telemetry.health import Health
from postroom.telemetry.metrics import Metrics
from postroom.telemetry.probes import Probes
from postroom.telemetry.traces import Traces


def kinds(settings: Settings) -> set[type]:
    return {type(one) for one in listeners(telemetry(settings).hook)} & {Traces, Health, Metrics}


def test_without_a_port_nothing_is_counted_and_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert kinds(Settings()) == set()
    assert not wants_counts(telemetry(Settings()).hook)
    assert not isinstance(telemetry(Settings()).serving, Probes)


def test_V_4_with_a_port_there_are_metrics_and_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert kinds(Settings(http_port=9090)) == {Health, Metrics}
    assert isinstance(telemetry(Settings(http_port=9090)).serving, Probes)


def test_V_3_where_opentelemetry_is_loaded_there_are_spans() -> None:
    importlib.import_module("opentelemetry.trace")
    assert kinds(Settings()) == {Traces}


def test_a_port_without_the_library_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(DriverMissing, match=r"postroom\[metrics\]"):
        telemetry(Settings(http_port=9090))


def test_V_4_processes_have_ports_in_a_row() -> None:
    assert _ports(Settings(), 3) is None
    assert list(_ports(Settings(http_port=9090), 3) or []) == [9090, 9091, 9092]
    assert list(_ports(Settings(http_port=65_533), 3) or [])[-1] == 65_535
    with pytest.raises(InvalidSetting, match="each of 3 processes has a port of its own"):
        _ports(Settings(http_port=65_534), 3)
