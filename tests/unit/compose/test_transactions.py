"""Transactions for users' functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
