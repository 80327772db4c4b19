"""Statements that end a transaction are told from those that only look so."""

import pytest

from postroom.rules.twophase_statements import end_of_transaction


@pytest.mark.parametrize(
    ("statement", "command"),
    [
        ("COMMIT", "COMMIT"),
        (" -- done\n /* all */ commit;", "COMMIT"),
        ("COMMIT AND CHAIN", "COMMIT"),
        ("END TRANSACTION", "END"),
        ("abort", "ABORT"),
        ("Rollback", "ROLLBACK"),
        ("ROLLBACK WORK", "ROLLBACK"),
        ("PREPARE TRANSACTION 'x'", "PREPARE TRANSACTION"),
        ("ROLLBACK TO SAVEPOINT a", None),
        ("rollback work to a", None),
        ("ROLLBACK TRANSACTION TO a", None),
        ("PREPARE plan AS SELECT 1", None),
        ("UPDATE a SET commit = 1", None),
        ("committed()", None),
        ("-- COMMIT", None),
        ("", None),
    ],
)
def test_T_1_a_statement_that_ends_a_transaction_is_known(statement: str, command: str | None) -> None:
    assert end_of_transaction(statement) == command
