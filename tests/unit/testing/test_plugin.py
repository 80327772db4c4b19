"""The pytest plugin, as a project that has Postroom installed sees it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from postroom import testing

pytest_plugins = ["pytester"]
ALONE = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:hypothesispytest")


def test_the_fixtures_are_there_without_any_import(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sqlite3
        from contextlib import closing
        from postroom import Outbox
        from postroom.testing import InMemoryRelay

        def test_recording(postroom_outbox, postroom_relay):
            seen = []
            postroom_outbox.add(None, "orders.created", {"order_id": 7}, key=7)
            postroom_relay.deliver(seen.append)
            assert [seen[0].id] == [message.id for message in postroom_outbox.messages]

        def test_each_test_has_its_own(postroom_outbox):
            postroom_outbox.assert_not_published("orders.created")

        def test_database(postroom_database):
            with closing(sqlite3.connect(postroom_database.removeprefix("sqlite:///"))) as connection, connection:
                Outbox().add(connection, "orders.created")
            assert len(InMemoryRelay(postroom_database).deliver()) == 1
        """
    )
    ended = pytester.runpytest_subprocess(*ALONE, "-W", "error")
    ended.assert_outcomes(passed=3)


def test_a_run_that_uses_no_fixture_loads_nothing_of_postroom(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            loaded = {name for name in sys.modules if name.startswith("postroom")}
            assert loaded == {"postroom", "postroom.testing", "postroom.testing.plugin"}
            assert not {"sqlalchemy", "msgspec", "typer"} & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess(*ALONE).assert_outcomes(passed=1)


def test_the_core_does_not_need_pytest() -> None:
    program = (
        "import postroom.testing as t, sys; t.RecordingOutbox, t.InMemoryRelay; assert 'pytest' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_are_listed_and_wrong_ones_refused() -> None:
    assert {"InMemoryRelay", "RecordingOutbox"} <= set(dir(testing))
    with pytest.raises(AttributeError, match="nonsense"):
        testing.nonsense  # noqa: B018 - the access is what is tested
