"""Servers of tests that run at the same time must not be given the same port."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.services import ports
from tests.services.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_no_port_is_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "RESERVATIONS", tmp_path / "ports")
    monkeypatch.setattr(ports, "PORTS", range(29_000, 29_040))
    found = [free_port() for _ in range(20)]
    assert len(set(found)) == 20


def test_a_port_is_reserved_until_its_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    file = tmp_path / "ports"
    monkeypatch.setattr(ports, "RESERVATIONS", file)
    monkeypatch.setattr(ports, "PORTS", range(29_100, 29_102))
    file.write_text(f"29100 {os.getppid()}\n29101 {ended.pid}\n")
    assert free_port() == 29_101
    assert file.read_text() == f"29100 {os.getppid()}\n29101 {os.getpid()}\n"
