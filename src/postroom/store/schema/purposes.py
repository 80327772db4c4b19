"""What a database role is for. Apart from the grants, so that `postroom schema --help` need not load SQLAlchemy."""

from enum import StrEnum


class Purpose(StrEnum):
    """What a role is for."""

    PRODUCER = "producer"
    """`Outbox.add`, plain SQL, and starting and signalling sagas."""
    SQL_PRODUCER = "sql-producer"
    """PostgreSQL's function `add` alone; on MariaDB, the statements for programs in plain SQL."""
    RELAY = "relay"
    CDC = "cdc"
    """`relay --cdc`, which is a relay too: to read PostgreSQL's write-ahead log."""
    CONSUMER = "consumer"
    """Including retries, but not the service's own tables that handlers write."""
    SAGAS = "sagas"
    """A relay that runs sagas, but not the service's own tables that their steps write."""
    TRANSACTIONS = "transactions"
    """`TwoPhaseCommit`: its log, and its marks in a participant's database. A relay that recovers is a relay too."""
    LEDGER = "ledger"
    """The idempotency middleware and `Ledger`."""
    DASHBOARD = "dashboard"
    """Everything that only reads: status, lists, metrics."""
    OPERATOR = "operator"
    """Commands that act: requeue, discard, cancel, release, cleanup; and those on sagas."""
