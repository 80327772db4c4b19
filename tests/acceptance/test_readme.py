"""The README does what it says, typed as it is printed, in an empty folder and with a real broker."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance import documents
from tests.services.databases import need
from tests.services.nats import Nats
from tests.services.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

README = documents.ROOT / "README.md"
NOT_TYPED = ("make ", "pip install ")
"""What builds environments: `test_clean_install` does that, and CI calls make."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = "4222"
SECONDS = 120
WAIT = """python - <<'END'
import socket, time
while True:
    try:
        socket.create_connection(("localhost", {port}), 1).close()
        break
    except OSError:
        time.sleep(0.05)
END"""
"""What a person does who starts a server: look whether it is there."""


def blocks(page: Path) -> Iterator[tuple[str, list[str]]]:
    for language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        yield language, body.splitlines()


def script(port: int) -> tuple[str, list[str]]:
    """The README as a person types it, and what it says that is printed."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null' EXIT"]
    printed = []
    for language, body in blocks(README):
        if language == "python":
            name = body[0].removeprefix("# ")
            assert re.fullmatch(r"\w+\.py", name), f"a block begins with {body[0]!r}: say which file it is"
            lines += [f"cat > {name} <<'END'", *body, "END"]
        elif language == "console":
            for line in body:
                if not line.startswith("$ "):
                    printed.append(line)
                elif not line.startswith(NOT_TYPED, 2):
                    lines.append(line.removeprefix("$ "))
                    lines += [WAIT] if line.endswith("&") else []
    return "\n".join(lines).replace(PORT, str(port)).replace("{port}", str(port)), printed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the README was followed."""
    need(Nats)  # its program is what the README starts
    folder = tmp_path_factory.mktemp("readme")
    typed, printed = script(free_port())
    programs = str(Path(sys.executable).parent)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "PYTHONPATH"))},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    bash = shutil.which("bash")
    assert bash
    with (folder / "output").open("w+") as output:  # a pipe would stay open as long as the server runs
        ended = subprocess.run(
            [bash, "-c", typed], cwd=folder, env=environment, stdout=output, stderr=output, check=False, timeout=SECONDS
        )
        output.seek(0)
        told = output.read()
    assert ended.returncode == 0, told
    for line in printed:
        assert line in told.splitlines(), told
    return folder


def test_O_1_the_readme_s_shop_leaves_orders_and_their_messages(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        assert connection.execute("SELECT id, goods FROM orders").fetchall() == [(1, "a kettle"), (2, "a kettle")]
        messages = connection.execute("SELECT topic, key, status FROM postroom_outbox_status").fetchall()
        assert sorted(messages) == [("orders.created", "1", "sent"), ("orders.created", "2", "sent")]
    assert '"order_id":1' in (folder / "output").read_text()


def test_I_1_the_readme_s_consumer_bills_what_was_relayed_to_its_broker(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "billing.db")) as connection:
        assert connection.execute("SELECT order_id FROM bills").fetchall() == [(2,)]  # the test has rolled back
    assert "2 passed" in (folder / "output").read_text()


def test_the_readme_s_example_has_no_more_than_ten_lines() -> None:
    [example, *_] = [body for language, body in blocks(README) if language == "python"]
    code = [line for line in example if line and not line.startswith("#")]
    assert 0 < len(code) <= 10
