"""Django's connections in a two-phase commit look like ones in `atomic`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from django.db.transaction import TransactionManagementError, atomic, on_commit, set_rollback

from postroom.errors import (
    UnusableConnection,
    WrongMethod,
)
from tests.contract.twophase_ways import WAYS, Way, participant
from tests.contract.write_support import business_row

if TYPE_CHECKING:
    from tests.contract.write_support import Databases

ON_DJANGO = [way for way in WAYS if way.name.startswith("Django")]
on_django = pytest.mark.parametrize("way", ON_DJANGO, ids=str)


@on_django
def test_django_makes_savepoints_and_refuses_to_commit(way: Way, databases: Databases) -> None:
    with participant(way, databases) as (bank, database):
        line, branches, branch, row = bank.begun()
        statement, undone = business_row()
        with atomic(using="bank"):
            bank.write(line, statement)
            set_rollback(True, using="bank")
        statement, kept = business_row()
        with atomic(using="bank"):
            bank.write(line, statement)
        for method in ("commit", "rollback"):
            with pytest.raises(TransactionManagementError, match="forbidden"):
                getattr(line.given, method)()
        with pytest.raises(RuntimeError, match="durable"), atomic(using="bank", durable=True):
            pass
        line.flush()
        bank.run(line, branches.prepare(branch))
        bank.run(line, branches.commit_prepared(branch))
        line.release()
        assert database.has_business(row, kept)
        assert not database.has_business(undone)
        with atomic(using="bank"):  # the connection is what it was
            pass


@on_django
def test_functions_of_on_commit_are_called_after_a_commit_alone(
    way: Way, databases: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []
    with participant(way, databases) as (bank, _):
        for end in ("roll_back", "commit"):
            line, branches, branch, _ = bank.begun()
            on_commit(dict.fromkeys, using="bank")
            on_commit(partial(called.append, end), using="bank")
            if end == "roll_back":
                bank.run(line, branches.roll_back(branch))
            else:
                bank.run(line, branches.prepare(branch))
                bank.run(line, branches.commit_prepared(branch))
            assert called == []
            line.release()
    assert called == ["commit"]
    assert "on_commit has failed: TypeError" in caplog.text


@on_django
def test_what_django_wants_rolled_back_is_not_prepared(way: Way, databases: Databases) -> None:
    with participant(way, databases) as (bank, _):
        line, branches, branch, _ = bank.begun()
        set_rollback(True, using="bank")
        with pytest.raises(UnusableConnection, match="participant 'bank' cannot commit"):
            line.flush()
        bank.run(line, branches.roll_back(branch))
        line.release()


@on_django
def test_a_django_connection_in_a_transaction_is_refused(way: Way, databases: Databases) -> None:
    with participant(way, databases) as (bank, _):
        with atomic(using="bank"), pytest.raises(UnusableConnection, match="is in a transaction already"):
            bank.open()
        with pytest.raises(WrongMethod, match="which is sync"):
            asyncio.run(bank.opener.aopen())
