"""Old and new relays on one database, both ways: the tables first, then the code; and back again."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from postroom import Message
from postroom.store.schema.migrations import LATEST
from tests.acceptance import another_version
from tests.acceptance.probing import plain_environment, started, wait_until
from tests.acceptance.service import Service
from tests.services.databases import SERVERS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import FreshDatabase

OLD = ("-m", "postroom")
NEW = (another_version.__file__, str(LATEST + 1), str(LATEST))
BREAKING = (another_version.__file__, str(LATEST + 2), str(LATEST + 2))
FROM_OLD_TO_NEW = f"from version {LATEST} to version {LATEST + 1}"
BROKER = """
import os

def publish(message):
    with open("sent", "a") as sent:
        sent.write(f"{os.getpid()} {message.key} {message.json()['n']}\\n")
"""


class Room:
    """A database, and what its relays have sent."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service = service
        self.folder = folder
        self.added: list[int] = []
        (folder / "shop_broker.py").write_text(BROKER)
        (folder / "sent").touch()
        self.relay = ("relay", "--database", service.url, "--broker", "python:shop_broker:publish")

    def run(self, program: tuple[str, ...], *command: str) -> tuple[int, str]:
        """Run a command to its end."""
        ended = subprocess.run(
            [sys.executable, *program, *command, "--database", self.service.url],
            cwd=self.folder,
            env=plain_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return ended.returncode, ended.stdout + ended.stderr

    def add(self, count: int = 12) -> None:
        """Commit messages, two thirds of them with keys."""
        numbers = range(len(self.added), len(self.added) + count)
        self.service.commit(*(Message.new("orders", {"n": n}, key=f"k{n % 3}" if n % 3 else None) for n in numbers))
        self.added.extend(numbers)

    def sent(self) -> list[list[str]]:
        return [line.split() for line in (self.folder / "sent").read_text().splitlines()]

    def all_sent(self) -> bool:
        return {int(n) for _, _, n in self.sent()} >= set(self.added)

    def senders(self) -> set[str]:
        return {process for process, _, _ in self.sent()}

    def check(self) -> None:
        """Everything was sent, and each key's messages for the first time in their order."""
        firsts = dict.fromkeys((key, int(n)) for _, key, n in self.sent())
        assert sorted(n for _, n in firsts) == self.added
        for key in {key for key, _ in firsts} - {"None"}:
            of_key = [n for other, n in firsts if other == key]
            assert of_key == sorted(of_key)


@pytest.mark.parametrize("kind", SERVERS)
def test_old_and_new_relays_share_one_schema_both_ways(
    kind: str, fresh_database: FreshDatabase, tmp_path: Path
) -> None:
    with closing(Service(fresh_database(kind))) as service:
        room = Room(service, tmp_path)
        with started(tmp_path, *room.relay, program=OLD) as old:
            assert room.run(NEW, "init") == (0, f"upgraded Postroom's tables {FROM_OLD_TO_NEW}\n")
            room.add()
            wait_until(room.all_sent, old.log)  # by the old one, on new tables
            with started(tmp_path, *room.relay, program=NEW) as new:

                def both() -> bool:
                    shared = {str(old.process.pid), str(new.process.pid)} <= room.senders()
                    if room.all_sent() and not shared:
                        room.add()
                    return room.all_sent() and shared

                wait_until(both, lambda: old.log() + new.log())
                assert old.stop() == 0
                # As after a crash, or on another node: old code starts on new tables, and its `init` harms nothing.
                assert room.run(OLD, "init") == (0, f"already at version {LATEST + 1}: nothing to do\n")
                with started(tmp_path, *room.relay, program=OLD) as again:
                    assert new.stop() == 0  # back to the old version
                    room.add()
                    wait_until(room.all_sent, again.log)
                    assert again.stop() == 0
        room.check()


def test_code_that_does_not_fit_the_tables_says_so_and_leaves_them_alone(tmp_path: Path) -> None:
    with closing(Service(f"sqlite:///{tmp_path / 'shop.db'}")) as service:
        room = Room(service, tmp_path)
        relay = ("relay", "--broker", "stdout:", "--once")
        for program, command, code, told in (
            (NEW, relay, 1, "run `postroom init`"),
            (BREAKING, ("init",), 0, f"to version {LATEST + 2}"),
            (OLD, relay, 1, "upgrade postroom"),
            (NEW, ("init",), 1, "upgrade postroom"),
        ):
            ended, output = room.run(program, *command)
            assert (ended, told in output) == (code, True), output
