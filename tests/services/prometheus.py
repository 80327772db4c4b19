"""Prometheus, from Debian's package, with the alert rules of `deploy/`."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.services.packages import require_programs
from tests.services.service import Service

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "postroom.rules.yml"
SETTINGS = """
global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}
rule_files: [postroom.rules.yml]
scrape_configs:
  - job_name: postroom
    file_sd_configs:
      - files: [targets.json]
        refresh_interval: 1s
"""


class Prometheus(Service):
    """It scrapes what `watch` names, every two seconds."""

    title = "Prometheus"

    def __init__(self) -> None:
        super().__init__()
        self._program: Path | None = None

    def require(self) -> None:
        self._program = require_programs("prometheus", "promtool", packages=["prometheus"])["prometheus"]

    def prepare(self) -> None:
        (self.directory / "prometheus.yml").write_text(SETTINGS)
        shutil.copy(RULES, self.directory)
        self.watch()

    def command(self) -> list[str | Path]:
        assert self._program
        return [
            self._program,
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def ping(self) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5):
            pass

    def watch(self, *ports: int) -> None:
        """Scrape these, and nothing else."""
        targets = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
        ready = self.directory / "targets.new"
        ready.write_text(json.dumps(targets))
        ready.rename(self.directory / "targets.json")

    def ask(self, page: str, **parameters: str) -> Any:
        """What the API answers; raises `urllib.error.HTTPError` for a query that it does not understand."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{page}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]
