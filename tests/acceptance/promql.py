"""What a PromQL expression asks for: its metrics, and the labels that it chooses and groups them by."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_RANGE = re.compile(r"\[[^\]]*\]")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_NAME = re.compile(r"(?<![\w.])[a-zA-Z_:][\w:]*(?!\s*\(|\w)")
_WORDS = {"and", "or", "unless", "bool", "offset"}
PROMETHEUS_ITS_OWN = {"up"}


@dataclass(frozen=True)
class Asked:
    """What an expression asks for."""

    metrics: frozenset[str]
    labels: frozenset[tuple[str, str]]
    """Metric and label, of each selector."""
    groups: frozenset[str]


def asked(expression: str) -> Asked:
    """Read an expression."""
    plain = _RANGE.sub("", _STRING.sub("", expression))
    labels = frozenset(
        (found[1], matcher.strip().rstrip("=!~ "))
        for found in _SELECTOR.finditer(plain)
        for matcher in found[2].split(",")
        if matcher.strip()
    )
    groups = frozenset(label.strip() for found in _GROUPING.finditer(plain) for label in found[1].split(","))
    bare = _GROUPING.sub("", re.sub(r"\{[^}]*\}", "", plain))
    return Asked(frozenset(_NAME.findall(bare)) - _WORDS, labels, groups)


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    loaded = yaml.safe_load((DEPLOY / "prometheus" / "postroom.rules.yml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The Grafana dashboard."""
    loaded: dict[str, Any] = json.loads((DEPLOY / "grafana" / "postroom.json").read_text())
    return loaded


def panels() -> dict[str, list[str]]:
    """The expressions of each panel, with the variables as a person would have chosen them."""
    return {
        panel["title"]: [
            target["expr"].replace("$__rate_interval", "1m").replace("$queue", ".*") for target in panel["targets"]
        ]
        for panel in dashboard()["panels"]
        if panel["type"] != "row"
    }
