"""Alerts and the Grafana dashboard: what they ask for is what relays and consumers show, to a real Prometheus."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from postroom import Message
from postroom.telemetry import gauges, metrics, saga_metrics
from postroom.telemetry.meters import Metric
from tests.acceptance import promql
from tests.acceptance.probing import Process, started, wait_until
from tests.acceptance.service import Service
from tests.services.databases import need
from tests.services.nats import Nats
from tests.services.packages import require_programs
from tests.services.prometheus import Prometheus

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import FreshDatabase

APPLICATION = """
from datetime import UTC, datetime, timedelta

from postroom import Consumer, Outbox
from postroom.telemetry.metrics import prometheus

outbox = Outbox(hook=prometheus())
consumer = Consumer("billing", {broker!r}, database={database!r})

@consumer.handler({topic!r})
def bill(connection, message):
    outbox.add(connection, "billed", deliver_at=datetime.now(UTC) + timedelta(days=1))

def refuse(message):
    return {{"status": "error", "reason_code": "INVALID_TARGET"}}
"""
ELSEWHERE = {
    *("Sagas by state", "Sagas that ended, and turned", "Two-phase commits in doubt"),
    *("Write-ahead log held back", "Behind", "What happened to the stream"),
}
"""Panels that are empty where there are neither sagas nor two-phase commits, and nobody reads the log."""


def exposed(process: Process) -> set[str]:
    """The names under which Prometheus stores what a process shows."""
    names: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", process.get("/metrics")[1], re.MULTILINE):
        names |= {f"{name}_{part}" for part in ("bucket", "count", "sum")} if kind == "histogram" else {name}
    return names


def labels_of(name: str) -> set[str]:
    """The labels that a metric of ours has, by its name in Prometheus."""
    of_histogram = re.fullmatch(r"(.*_seconds)_bucket", name)
    for module in (gauges, metrics, saga_metrics):
        for one in vars(module).values():
            if isinstance(one, Metric) and one.flat in (
                name,
                name.removesuffix("_total"),
                of_histogram and of_histogram[1],
            ):
                return {*one.labels, *({"le"} if of_histogram else ())}
    return set()


def expressions() -> list[str]:
    return [*(rule["expr"] for rule in promql.rules()), *(one for panel in promql.panels().values() for one in panel)]


def test_V_1_prometheus_finds_in_relay_and_consumer_all_that_alerts_and_dashboard_ask_for(
    ready_database: FreshDatabase, tmp_path: Path
) -> None:
    prometheus, nats = need(Prometheus), need(Nats)
    topic = f"orders_{uuid4().hex}"
    broker = f"nats://127.0.0.1:{nats.port}?declare=true&stream={topic}&subjects={topic}"
    with closing(Service(ready_database("postgresql"))) as service:
        (tmp_path / "shop.py").write_text(APPLICATION.format(broker=broker, database=service.url, topic=topic))
        relaying = ("relay", "--database", service.url, "--broker", broker, "--broker-for", "poison=python:shop:refuse")
        with (
            started(tmp_path, *relaying) as relay,
            started(tmp_path, "consume", "--app", "shop:consumer") as consumer,
        ):
            prometheus.watch(relay.port, consumer.port)
            service.commit(*(Message.new(topic, {"n": n}) for n in range(5)), Message.new("poison", key="k"))

            def result(expression: str) -> Any:
                return prometheus.ask("query", query=expression)["result"]

            wait_until(lambda: [one["value"][1] for one in result('up{job="postroom"}')] == ["1", "1"], relay.log)
            there = exposed(relay) | exposed(consumer)
            for expression in expressions():
                asked = promql.asked(expression)
                assert asked.metrics - promql.PROMETHEUS_ITS_OWN <= there, expression
            wait_until(
                lambda: not empty_panels(result), lambda: f"{empty_panels(result)}\n{relay.log()}{consumer.log()}"
            )
            for rule in promql.rules():
                result(rule["expr"])

            def firing() -> set[str]:
                return {
                    one["labels"]["alertname"] for one in prometheus.ask("alerts")["alerts"] if one["state"] == "firing"
                }

            wait_until(lambda: "DeadLetters" in firing(), relay.log)
            assert not firing() & {"OutboxHasNoRelay", "QueueHasNoWorker", "BrokerAway", "DatabaseAway", "RelayIsDown"}
            assert (relay.stop(), consumer.stop()) == (0, 0)
        wait_until(lambda: [one["value"][1] for one in result('up{job="postroom"}')] == ["0", "0"])
        prometheus.watch()


def empty_panels(result: Any) -> set[str]:
    return {
        f"{title}: {expression}"
        for title, panel in promql.panels().items()
        if title not in ELSEWHERE
        for expression in panel
        if not result(expression)
    }


def test_V_1_alerts_and_dashboard_choose_by_labels_that_their_metrics_have() -> None:
    for expression in expressions():
        asked = promql.asked(expression)
        for metric, label in asked.labels:
            assert label in labels_of(metric) | {"job"}, f"{metric} has no {label}: {expression}"
        for label in asked.groups:
            assert any(label in labels_of(metric) | {"instance"} for metric in asked.metrics), expression


@pytest.mark.parametrize(
    ("expression", "metrics", "groups"),
    [
        ('max by (queue) (outbx_dead{a="b{c}"}) > 0', {"outbx_dead"}, {"queue"}),
        ("histogram_quantile(0.9, sum by (le, b) (rate(x_bucket[5m])))", {"x_bucket"}, {"le", "b"}),
        ("(a > 0) unless on (queue) (b offset 5m)", {"a", "b"}, {"queue"}),
        ("time() - max(x_y:z) or vector(0)", {"x_y:z"}, set()),
    ],
)
def test_a_misspelt_metric_would_be_noticed(expression: str, metrics: set[str], groups: set[str]) -> None:
    asked = promql.asked(expression)
    assert asked.metrics == frozenset(metrics)
    assert asked.groups == frozenset(groups)
    assert labels_of("outbx_dead") == set()


def test_V_1_every_alert_fires_when_it_should(tmp_path: Path) -> None:
    need(Prometheus)
    promtool = require_programs("promtool", packages=["prometheus"])["promtool"]
    folder = tmp_path / "prometheus"
    shutil.copytree(promql.DEPLOY / "prometheus", folder)

    def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([promtool, *arguments], cwd=folder, capture_output=True, text=True, check=False)

    for command in (
        ("check", "rules", "postroom.rules.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "postroom.rules.test.yml"),
    ):
        ended = checked(*command)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    tested = (folder / "postroom.rules.test.yml").read_text()
    for rule in promql.rules():
        assert f"alertname: {rule['alert']}\n        exp_alerts:" in tested, "each has a case in which it fires"
    rules = folder / "postroom.rules.yml"
    rules.write_text(rules.read_text().replace("outbox_held_keys", "outbox_helt_keys"))
    assert checked("test", "rules", "postroom.rules.test.yml").returncode == 1


def test_every_alert_says_what_is_wrong_and_where_to_read_on() -> None:
    page = (promql.DEPLOY.parent / "docs" / "guide" / "metrics.md").read_text()
    for rule in promql.rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        notes = rule["annotations"]
        assert notes["summary"]
        assert notes["description"].endswith(".")
        assert notes["runbook_url"] == f"docs/guide/metrics.md#{rule['alert'].lower()}"
        assert f"\n### {rule['alert']}\n" in page


def test_the_dashboard_is_one_that_grafana_can_load() -> None:
    dashboard = promql.dashboard()
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert "outbox_relay_alive" in variables["queue"]["definition"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel.get("targets", ()))
    assert overlaps(dashboard["panels"]) == []


def overlaps(panels: list[dict[str, Any]]) -> list[tuple[str, str]]:
    cells: dict[tuple[int, int], str] = {}
    found = []
    for panel in panels:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (x, y) in cells:
                    found.append((cells[x, y], panel["title"]))
                cells[x, y] = panel["title"]
    return found
