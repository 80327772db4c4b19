"""The capacity model: it fits what was measured, and the page says what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.capacity import Cost, Model

DOCS = Path(__file__).parents[2] / "docs"
POINTS = json.loads((DOCS / "performance" / "points.json").read_text())
MODEL = Model.fitted(POINTS["size"])


def test_a_line_is_found_again() -> None:
    line = {
        "python_us": 5 + 2e-3,
        "server_us": 8.0,
        "add_us": 3.0,
        "wal_bytes": 1.0,
        "wal_of_add": 1.0,
        "kept_bytes": 1.0,
    }
    points = [{**line, "size": size, "python_us": 5 + 2e-3 * size} for size in (100.0, 1e4, 1e6)]
    model = Model.fitted(points)
    assert model.python_us == pytest.approx(Cost(5, 2e-3))
    assert model.server_us == pytest.approx(Cost(8, 0))
    needs = model.needs(rate=60_000, size=0, days=1)
    assert needs.relay_cores == pytest.approx(0.5)
    assert needs.relays == 2
    assert needs.disk_bytes == pytest.approx(60_000 * 86_400)


@pytest.mark.parametrize("point", POINTS["size"], ids=lambda point: str(point["x"]))
def test_the_model_is_close_to_what_was_measured(point: dict[str, float]) -> None:
    for name, cost in (
        ("python_us", MODEL.python_us),
        ("server_us", MODEL.server_us),
        ("kept_bytes", MODEL.kept_bytes),
    ):
        assert 0.6 < cost.of(point["size"]) / point[name] < 1.6


def test_the_page_gives_the_model() -> None:
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    given = dict(
        re.findall(r"^\| (relay µs|send µs|add µs|WAL bytes|stored bytes)[^|]*\| ([\d,]+)", page, re.MULTILINE)
    )
    costs = {
        "relay µs": MODEL.python_us,
        "send µs": MODEL.server_us,
        "add µs": MODEL.add_us,
        "WAL bytes": MODEL.wal_bytes,
        "stored bytes": MODEL.kept_bytes,
    }
    assert given == {name: f"{cost.fixed:,.0f}" for name, cost in costs.items()}
