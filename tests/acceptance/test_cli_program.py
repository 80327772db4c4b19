"""The command line as a program of its own: signals, pipes, terminals, several at once."""

from __future__ import annotations

import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from postroom import Outbox
from postroom.cli import main
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from tests.conftest import FreshDatabase

PATIENCE = 60
POSTROOM = (sys.executable, "-m", "postroom")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("POSTROOM_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def add(url: str, topics: list[str], key: str | None = None) -> None:
    """Make the tables in an SQLite database, and a message for each topic."""
    assert main(["init", "--database", url]) == 0
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        for topic in topics:
            Outbox().add(connection, topic, key=key)


@pytest.mark.parametrize("kind", KINDS)
def test_init_from_several_processes_at_once_creates_the_tables_once(kind: str, fresh_database: FreshDatabase) -> None:
    url = fresh_database(kind)
    command = [*POSTROOM, "init", "--database", url]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    ended = [(*process.communicate(timeout=PATIENCE), process.returncode) for process in processes]
    assert [(err, code) for _, err, code in ended] == [("", 0)] * 4
    told = sorted(out for out, _, _ in ended)
    assert told[:3] == ["already at version 7: nothing to do\n"] * 3
    assert told[3] == "created version 7 of Postroom's tables\n"
    assert main(["status", "--database", url]) == 0


def test_ctrl_c_while_the_database_keeps_it_waiting_ends_with_130(fresh_database: FreshDatabase) -> None:
    url = fresh_database("postgresql")
    with psycopg.connect(url) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('postroom init', 0))")
        with subprocess.Popen(
            [*POSTROOM, "init", "--database", url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                await_someone_waiting(holder)
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=PATIENCE) == ("", "")
                assert process.returncode == 130
            finally:
                process.kill()


def await_someone_waiting(connection: psycopg.Connection) -> None:
    deadline = time.monotonic() + PATIENCE
    waiting = """
        SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
        WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"""
    while not connection.execute(waiting).fetchone():
        assert time.monotonic() < deadline, "nobody waits for the lock"
        time.sleep(0.02)


def test_a_reader_that_goes_away_is_no_error(fresh_database: FreshDatabase) -> None:
    url = fresh_database("sqlite")
    add(url, ["orders.created"] * 200)
    for command in (["messages", "list", "--limit", "1000", "--database", url], ["schema", "--dialect", "mysql"]):
        read, write = os.pipe()
        os.close(read)
        ended = subprocess.run([*POSTROOM, *command], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
        os.close(write)
        assert ended.stderr == ""
        assert ended.returncode == 141


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*POSTROOM, "schema", "--dialect", "sqlite"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr == "postroom: [Errno 28] No space left on device\n"


def test_colours_and_lines_are_for_terminals_only(fresh_database: FreshDatabase) -> None:
    url = fresh_database("sqlite")
    add(url, ["orders.created"], key="\x1b[31m")
    for command in (["status"], ["messages", "list"]):
        piped = subprocess.run([*POSTROOM, *command, "--database", url], capture_output=True, text=True, check=True)
        assert piped.stdout.isascii()
        assert "\x1b" not in piped.stdout
        seen = on_a_terminal([*POSTROOM, *command, "--database", url])
        assert "\x1b[1m" in seen
        assert "─" in seen
        assert "\x1b[31m" not in seen.replace("\x1b[1;31m", "")
    assert subprocess.run([*POSTROOM, "--help"], capture_output=True, text=True, check=True).stdout.isascii()


def on_a_terminal(command: list[str]) -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:  # Linux's way to say that the other side has closed
            pass
        os.close(ours)
        assert process.wait(PATIENCE) == 0
    return seen.decode()


def test_a_character_that_the_output_cannot_hold_is_escaped(fresh_database: FreshDatabase) -> None:
    url = fresh_database("sqlite")
    add(url, ["größe"], key="日本")
    listed = subprocess.run(
        [*POSTROOM, "messages", "list", "--database", url],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        encoding="latin-1",
        check=True,
    )
    assert "größe" in listed.stdout
    assert r"\u65e5\u672c" in listed.stdout


def test_the_installed_program_is_the_same_command_line() -> None:
    for command in ((Path(sys.executable).with_name("postroom"),), POSTROOM):
        told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
        assert told.startswith("postroom 0.")
