"""The files that a test shares with its relays and its producer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One message as the broker got it."""

    id: str
    key: str | None
    position: int
    sender: str


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a relay said of the reachability of its broker or its database."""

    what: str
    reachable: bool


@dataclass(frozen=True)
class Places:
    """Names of files in one directory."""

    directory: Path

    @property
    def broker(self) -> Path:
        """It only grows, by a line for each message."""
        return self.directory / "broker"

    @property
    def acknowledged(self) -> Path:
        """Ids of messages whose transaction has committed, as far as their producer knows."""
        return self.directory / "acknowledged"

    @property
    def logged(self) -> Path:
        """Ids of committed messages that are in PostgreSQL's log alone, in the order in which they were written."""
        return self.directory / "logged"

    @property
    def undone(self) -> Path:
        """Ids of messages whose transaction was rolled back."""
        return self.directory / "undone"

    @property
    def enough(self) -> Path:
        """Once it is there, the producer ends."""
        return self.directory / "enough"

    @property
    def down(self) -> Path:
        """While it is there, the broker cannot be reached."""
        return self.directory / "down"

    @property
    def stuck(self) -> Path:
        """While it is there, the broker gives no answer."""
        return self.directory / "stuck"

    def told(self, name: str) -> Path:
        """What a relay said of reachability."""
        return self.directory / f"{name}.told"

    def lines(self) -> list[Line]:
        """What the broker has got."""
        return [msgspec.json.decode(line, type=Line) for line in _lines(self.broker)]

    def said(self, name: str) -> list[Told]:
        return [msgspec.json.decode(line, type=Told) for line in _lines(self.told(name))]

    def ids(self, path: Path) -> set[str]:
        return {*self.ids_in_order(path)}

    def ids_in_order(self, path: Path) -> list[str]:
        return [line.decode() for line in _lines(path)]


def append(path: Path, *lines: bytes) -> None:
    """Write lines at the end, whole, whoever else does at the same time."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, b"".join(line + b"\n" for line in lines))
    finally:
        os.close(file)


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []
