"""SQL that ends a transaction: code inside a two-phase commit must leave that to its block."""

import re

_COMMENTS = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_ENDS = re.compile(
    rf"{_COMMENTS}(COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)


def end_of_transaction(statement: str) -> str | None:
    """The command, if a statement begins with one that ends its transaction. ``ROLLBACK TO`` a savepoint does not."""
    found = _ENDS.match(statement)
    return None if found is None else found[1].upper()
