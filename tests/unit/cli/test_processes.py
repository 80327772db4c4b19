"""Minding relay processes: which of them is started again."""

import subprocess
from types import SimpleNamespace

import pytest

from postroom.cli.processes import Child


@pytest.mark.parametrize(
    ("code", "killed", "failed"),
    [(None, False, False), (0, False, False), (1, False, True), (2, False, True), (-9, True, False)],
)
def test_a_process_that_was_killed_is_told_from_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, code: int | None, *, killed: bool, failed: bool
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: SimpleNamespace(returncode=code))
    child = Child("relay-1", [])
    assert (child.was_killed(), child.failed()) == (killed, failed)
