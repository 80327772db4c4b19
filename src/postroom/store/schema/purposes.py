"""What a database role is for. Apart from the grants, so that `postroom schema --help` need not load SQLAlchemy."""

from enum import StrEnum


class Purpose(StrEnum):
    """What a role is for."""

    PRODUCER = "producer"
    """`Outbox.add`, and plain SQL."""
    SQL_PRODUCER = "sql-producer"
    """PostgreSQL's function `add`, and nothing else; on MariaDB the statements for programs in plain SQL."""
    RELAY = "relay"
    CONSUMER = "consumer"
    """With its retries; the tables that handlers write are the service's own."""
    LEDGER = "ledger"
    """The idempotency middleware and `Ledger`."""
    DASHBOARD = "dashboard"
    """All that only looks: status, lists, metrics."""
    OPERATOR = "operator"
    """Commands that act: requeue, discard, cancel, release, clean up."""
