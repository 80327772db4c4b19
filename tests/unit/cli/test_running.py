"""What a command raises becomes one line on standard error and an exit code."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

import pytest

from postroom import Admin
from postroom.cli import main
from postroom.errors import DatabaseUnreachable, PostroomError

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Command

SECRET = "s3kr3t"  # noqa: S105 - it only has to be recognisable
DATABASE = ("--database", "sqlite:///app.db")


@pytest.mark.parametrize(
    "arguments",
    [
        ("statsu",),
        ("status", "--limit", "7"),
        ("status", "--database"),
        ("messages", "list", "--limit", "0"),
        ("messages", "list", "--limit", "many"),
        ("messages", "list", "--status", "lost"),
        ("messages", "list", "--before", "0"),
        ("messages", "forget"),
        ("schema", "--dialect", "oracle"),
        ("schema",),
        ("status",),
        ("status", "--database", "app.db"),
        ("status", "--database", "oracle://host/name"),
        ("init", *DATABASE, "--schema", "public"),
        ("init", *DATABASE, "--table-prefix", "a-b"),
        ("demo", "--messages", "0"),
    ],
)
def test_a_wrong_call_is_one_line_on_stderr_and_exit_code_2(arguments: tuple[str, ...], postroom: Command) -> None:
    ended = postroom(*arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("postroom: ")
    assert ended.err.count("\n") == 1
    assert ended.err.endswith("\n")


def test_without_a_database_the_line_says_how_to_give_one(postroom: Command) -> None:
    for command in (["init"], ["status"], ["messages", "list"]):
        ended = postroom(*command)
        assert "--database" in ended.err
        assert "POSTROOM_DATABASE" in ended.err


def test_a_usage_error_names_the_command_whose_help_explains_it(postroom: Command) -> None:
    assert "`postroom messages list --help`" in postroom("messages", "list", "--limt", "7").err


@pytest.mark.parametrize("group", [(), ("messages",), ("dead",), ("transactions",)])
def test_the_help_says_in_a_whole_sentence_what_each_command_does(group: tuple[str, ...], postroom: Command) -> None:
    commands = postroom(*group, "--help").out.partition("Commands:")[2]
    assert commands
    assert "..." not in commands


def test_a_wrong_choice_is_told_the_right_ones_in_our_words(postroom: Command) -> None:
    said = postroom("messages", "list", "--status", "foo").err
    assert "Invalid value for '--status': 'foo' is not one of 'pending', 'sending'" in said


def test_a_relay_that_is_switched_off_prints_json_alone(postroom: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_ENABLED", "false")
    ended = postroom("relay", "--once", "--json", "--broker", "stdout:", "--database", "sqlite:///app.db")
    assert ended.code == 0
    assert json.loads(ended.out)["sent"] == 0
    assert "switched off" in ended.err


def test_a_relay_does_not_throw_messages_away(postroom: Command) -> None:
    ended = postroom("relay", "--once", "--broker", "memory:", "--database", "sqlite:///app.db")
    assert (ended.code, ended.out) == (2, "")
    assert "memory: is for tests" in ended.err


@pytest.mark.parametrize("arguments", [(), ("messages",)])
def test_without_a_command_the_help_goes_to_stderr(arguments: tuple[str, ...], postroom: Command) -> None:
    ended = postroom(*arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("Usage: postroom")


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", f"postgresql://user:{SECRET}@host/name"),
        ("messages", "list", f"--limit=postgresql://user:{SECRET}@host/name"),
        ("messages", "list", "--status", f"mysql://user@host/name?password={SECRET}"),
        ("status", "--databse", f"postgresql://user:{SECRET}@host/name"),
        (f"postgresql://user:{SECRET}@host/name",),
        ("status", "--database", f"oracle://user:{SECRET}@host/name"),
        ("status", "--database", f"user:{SECRET}@host"),
        ("status", "--database", f"postgresql://user:{SECRET}@host:port/name"),
        ("init", "--database", f"postgresql://user:{SECRET}@host/name", "--schema", "a b"),
        ("status", "--database", f"postgresql://user:{SECRET}@127.0.0.1:1/name"),
        ("status", "--database", f"postgresql://user:pass@{SECRET}@127.0.0.1:1/name"),
        ("relay", "--once", "--broker", "stdout:", "--database", f"postgresql://user:p@{SECRET}@127.0.0.1:1/name"),
        ("status", "--database", f"mysql://user:pass@word/{SECRET}@127.0.0.1:1/name"),
        ("status", "--database", f"postgresql://user@127.0.0.1:1/name?password={SECRET}"),
        ("status", "--database", f"mysql://user:{SECRET}@127.0.0.1:1/name"),
        ("status", "--database", f"mysql://user@127.0.0.1:1/name?password={SECRET}&nonsense=1"),
    ],
)
def test_no_error_shows_a_password(arguments: tuple[str, ...], postroom: Command) -> None:
    ended = postroom(*arguments)
    assert ended.code in {1, 2}
    assert ended.err.startswith("postroom: ")
    assert ended.err.count("\n") == 1
    assert SECRET not in ended.out + ended.err


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (DatabaseUnreachable("the database is\n\taway"), "postroom: the database is away\n"),
        (PostroomError("no"), "postroom: no\n"),
        (sqlite3.OperationalError("database is locked"), "postroom: the database refused: database is locked\n"),
        (OSError(28, "No space left on device"), "postroom: [Errno 28] No space left on device\n"),
    ],
)
def test_what_goes_wrong_in_a_command_is_one_line_and_exit_code_1(
    raised: Exception, line: str, postroom: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(Admin, "status", fail)
    monkeypatch.setattr("postroom.cli.running._drop_output", lambda: None)  # pytest's own standard output
    postroom("init", *DATABASE)
    assert postroom("status", *DATABASE) == (1, "", line)


def test_a_bug_keeps_its_traceback(postroom: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admin, "status", None)
    postroom("init", *DATABASE)
    with pytest.raises(TypeError):
        postroom("status", *DATABASE)


def test_an_interrupt_ends_with_130_and_without_a_word(postroom: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Admin, "status", interrupt)
    postroom("init", *DATABASE)
    assert postroom("status", *DATABASE) == (130, "", "")


def test_the_version_is_the_package_s(postroom: Command) -> None:
    ended = postroom("--version")
    assert ended.code == 0
    assert ended.out.startswith("postroom 0.")


def test_the_program_s_own_arguments_are_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["postroom", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("postroom ")
