"""Transactions for users' functions."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from postroom.compose.transactions import Transactions

if TYPE_CHECKING:
    from pathlib import Path


def test_single_transactions_and_series_of_them_share_their_connections(tmp_path: Path) -> None:
    transactions = Transactions(None, f"sqlite:///{tmp_path / 'service.db'}")
    with transactions.kept() as (series, _):
        pass
    with transactions.blocking() as single:
        assert single.engine is series.engine
    transactions.close_blocking()


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_a_connection_that_comes_back_after_the_end_is_closed(tmp_path: Path, error: Exception | None) -> None:
    transactions = Transactions(None, f"sqlite:///{tmp_path / 'service.db'}")
    with transactions.kept() as (series, _):
        late = series.connection.driver_connection
        with suppress(ZeroDivisionError), transactions.blocking() as single:
            later = single.connection.driver_connection
            transactions.close_blocking()
            if error is not None:
                raise error
    for driver in (late, later):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            driver.execute("SELECT 1")
