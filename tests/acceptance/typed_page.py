"""A page that is typed as it is printed: its files written, its commands run one by one, what they print compared."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 60
_DIFFERS = (
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
)
_PORT = re.compile(r"--port (\d+)")


@dataclass(frozen=True)
class Command:
    """A line after `$`, and the lines below it."""

    line: str
    prints: list[str] = field(default_factory=list)


def steps(page: Path) -> Iterator[tuple[str, str] | Command]:
    """What to do, in order: files to write, by name and text, and commands to run."""
    for language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            name = body.partition("\n")[0].removeprefix("# ")
            assert re.fullmatch(r"\w+\.py", name), f"a block begins with {name!r}: say which file it is"
            yield name, body
        elif language == "console":
            yield from _commands(body)


def _commands(body: str) -> Iterator[Command]:
    command: Command | None = None
    for line in body.splitlines():
        if line.startswith("$ "):
            if command:
                yield command
            command = Command(line.removeprefix("$ "))
        else:
            assert command, f"{line!r} stands before a command"
            command.prints.append(line)
    if command:
        yield command


class Typist:
    """Types a page in a folder. What is started in the background is stopped by `close`."""

    def __init__(self, folder: Path, ports: Mapping[str, int]) -> None:
        self._folder = folder
        self._ports = ports
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "PYTHONPATH"))}
        self._environment = kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        self._servers: list[subprocess.Popen[bytes]] = []

    def type(self, page: Path, not_typed: tuple[str, ...]) -> int:
        """Do every step; fails where something else is printed than the page says. Returns how many commands ran."""
        ran = 0
        for step in steps(page):
            if not isinstance(step, Command):
                name, text = step
                (self._folder / name).write_text(self._with_ports(text), encoding="utf-8")
            elif not step.line.startswith(not_typed):
                self._run(step)
                ran += 1
        return ran

    def close(self) -> None:
        """Stop what runs in the background."""
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.wait(SECONDS)

    def _run(self, command: Command) -> None:
        line = self._with_ports(command.line)
        if line.startswith("export "):
            name, _, value = shlex.split(line)[1].partition("=")
            self._environment[name] = value
        elif line.endswith("&"):
            self._start(line.removesuffix("&"))
        else:
            ended = subprocess.run(
                shlex.split(line),
                cwd=self._folder,
                env=self._environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
            )
            printed = ended.stdout if ended.returncode == 0 else ended.stdout + ended.stderr
            wanted = "\n".join(command.prints)
            assert _alike(printed.rstrip("\n")) == _alike(wanted), f"$ {command.line}\n{printed}{ended.stderr}"

    def _start(self, line: str) -> None:
        port = _PORT.search(line)
        assert port, f"{line!r} has no --port: how would we know that it is there?"
        self._servers.append(subprocess.Popen(shlex.split(line), cwd=self._folder, env=self._environment))
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                socket.create_connection(("localhost", int(port[1])), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, f"{line!r} does not answer"
                time.sleep(0.02)  # until the server is there, as whoever types the page would look

    def _with_ports(self, text: str) -> str:
        for printed, port in self._ports.items():
            text = re.sub(rf"\b{printed}\b", str(port), text)
        return text


def _alike(printed: str) -> str:
    """Without what differs each time."""
    for pattern, name in _DIFFERS:
        printed = pattern.sub(name, printed)
    return printed
