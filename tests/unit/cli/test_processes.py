"""Minding relay processes: which of them is started again."""

import subprocess
from types import SimpleNamespace

import pytest

from postroom.cli.processes import Child


@pytest.mark.parametrize(
    ("code", "lived", "failed"),
    [
        (0, 0.1, False),
        (2, 0.1, True),
        (2, 60.0, True),  # called wrongly: it will be the next time
        (1, 5.0, True),  # the database is not there, and the machine is busy
        (1, 60.0, False),
        (-9, 0.1, True),
        (-9, 5.0, False),
    ],
)
def test_a_process_that_could_not_start_would_not_the_next_time(
    monkeypatch: pytest.MonkeyPatch, code: int, lived: float, *, failed: bool
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: SimpleNamespace(returncode=code))
    child = Child("relay-1", [])
    child.started_at -= lived
    assert child.failed_to_start() is failed
