"""`postroom dashboard`, as a program."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from postroom.cli import main
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tests.conftest import FreshDatabase

POSTROOM = [sys.executable, "-m", "postroom", "dashboard", "--port", "0", "--json"]
OURS = {"sec-fetch-site": "same-origin"}


@contextmanager
def running(url: str, *options: str, **environment: str) -> Iterator[dict[str, Any]]:
    """What it prints when it serves; Ctrl-C must end it soon, though a page listens for changes."""
    with subprocess.Popen(
        [*POSTROOM, "--database", url, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            lines = list(iter(process.stdout.readline, "}\n"))
            yield json.loads("".join([*lines, "}"]))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) in {0, 130}
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_V_4_it_serves_with_a_token_of_its_own_until_ctrl_c(fresh_database: FreshDatabase) -> None:
    url = fresh_database("sqlite")
    with closing(Service(url)), running(url) as told, httpx.Client(base_url=told["url"]) as client:
        assert client.get("").status_code == 401
        assert len(told["token"]) >= 40
        entered = client.post("login", data={"token": told["token"]}, headers=OURS, follow_redirects=True)
        assert (entered.status_code, "Overview" in entered.text) == (200, True)
        with client.stream("GET", "events") as stream:
            assert next(stream.iter_lines()).startswith("retry:")
            assert stream.headers["content-type"].startswith("text/event-stream")


def test_V_4_the_token_may_come_from_a_file_and_the_path_may_have_a_prefix(
    fresh_database: FreshDatabase, tmp_path: Path
) -> None:
    url, file = fresh_database("sqlite"), tmp_path / "token"
    file.write_text("a token from a file\n")
    with (
        closing(Service(url)),
        running(url, "--token-file", str(file), "--root-path", "/ops/", "--read-only") as told,
        httpx.Client(base_url=told["url"]) as client,
    ):
        assert (told["token"], told["url"][-5:]) == (None, "/ops/")
        token = {"token": "a token from a file"}
        entered = client.post("login", data=token, headers=OURS, follow_redirects=True)
        assert "read only" in entered.text
        [cookie] = client.cookies.jar
        assert cookie.path == "/ops"


def test_V_4_what_is_given_wrongly_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = ("--database", f"sqlite:///{tmp_path / 'shop.db'}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for wrong, said in {
            ("--token", "short"): "fewer than 16 characters",
            ("--token", "x" * 20, "--token-file", "x"): "choose one",
            ("--token-file", str(tmp_path / "none")): "cannot be read: No such file",
            ("--trace-link", "https://x"): "{trace_id}",
            ("--port", port): f"cannot listen on 127.0.0.1, port {port}",
        }.items():
            assert main(["dashboard", *database, *wrong]) == 2
            error = capsys.readouterr().err
            assert said in error
            assert error.count("\n") == 1
