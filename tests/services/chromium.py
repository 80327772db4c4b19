"""Chromium without a screen, from Debian's packages, to be driven over its debugging port."""

from __future__ import annotations

import os
import urllib.request
from typing import TYPE_CHECKING

from tests.services.packages import require_programs
from tests.services.service import Service

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--password-store=basic",
)


class Chromium(Service):
    """A browser that goes nowhere by itself."""

    title = "Chromium"

    def __init__(self) -> None:
        super().__init__()
        self._programs: dict[str, Path] = {}

    @property
    def url(self) -> str:
        """Where Playwright connects to."""
        return f"http://127.0.0.1:{self.port}"

    def require(self) -> None:
        self._programs = require_programs("chromium", packages=("chromium",))

    def prepare(self) -> None:
        pass

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "HOME": "/tmp"}  # noqa: S108 - its profile is elsewhere

    def command(self) -> list[str | Path]:
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # its sandbox refuses root
        return [
            *(self._programs["chromium"], *FLAGS, *root),
            *(f"--remote-debugging-port={self.port}", f"--user-data-dir={self.directory / 'profile'}", "about:blank"),
        ]

    def ping(self) -> None:
        with urllib.request.urlopen(f"{self.url}/json/version", timeout=5) as answer:  # noqa: S310 - ours
            assert answer.status == 200
