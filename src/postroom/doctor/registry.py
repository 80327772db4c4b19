"""All checks, in the order in which they run. A check is a row here: its code, what it asks, where to read on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.doctor import broker_checks as broker
from postroom.doctor import database_checks as database
from postroom.doctor import flow_checks as flow
from postroom.doctor import schema_checks as schema
from postroom.doctor import settings_checks as settings
from postroom.doctor import stream_checks as stream
from postroom.doctor import unfinished_checks as unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.doctor.surroundings import Surroundings
    from postroom.rules.checks.findings import Finding

PAGE = "docs/guide/troubleshooting.md"


class Check(NamedTuple):
    """One check. The code is stable: scripts and alerts may name it."""

    code: str
    question: str
    heading: str
    """Of the troubleshooting page."""
    look: Callable[[Surroundings], Finding | Sequence[Finding]]

    @property
    def group(self) -> str:
        """The first word of the code, in lower case."""
        return self.code.partition("_")[0].lower()

    @property
    def docs(self) -> str:
        """Where to read on."""
        return f"{PAGE}#{self.heading}"


CHECKS: tuple[Check, ...] = (
    Check("DB_REACHABLE", "Does the database answer?", "the-database-cannot-be-reached", database.reachable),
    Check("DB_WRITABLE", "Does it take writes?", "the-database-cannot-be-reached", database.writable),
    Check("SCHEMA_VERSION", "Are the tables of this version?", "the-tables-do-not-fit", schema.version),
    Check("SCHEMA_TABLES", "Is every table, column and index there?", "the-tables-do-not-fit", schema.parts),
    Check("SCHEMA_VIEW", "Can the view outbox_status be read?", "the-tables-do-not-fit", schema.view),
    Check("SCHEMA_FUNCTION", "Is the function add this version's?", "the-tables-do-not-fit", schema.function),
    Check("SCHEMA_LANES", "Does every queue have its lanes?", "the-tables-do-not-fit", schema.lanes),
    Check("SCHEMA_STORAGE", "Are the tables stored as they should be?", "the-tables-do-not-fit", schema.storage),
    Check("SCHEMA_GUARDS", "Do the tables refuse broken rows?", "the-tables-do-not-fit", schema.guards),
    Check("SCHEMA_PRIVILEGES", "May the user do what it is for?", "permission-is-denied", schema.privileges),
    Check("FLOW_NO_WORKER", "Is a worker alive for every queue?", "nothing-is-sent", flow.workers),
    Check("FLOW_OLDEST", "Do messages leave soon?", "messages-leave-late", flow.oldest),
    Check("FLOW_BROKER_DOWN", "Do workers reach their brokers?", "the-broker-is-down", flow.broker_down),
    Check("FLOW_TARGETS", "Does every topic take its messages?", "one-topic-takes-no-messages", flow.targets),
    Check("FLOW_DEAD", "Are there dead letters?", "dead-letters-pile-up", flow.dead),
    Check("FLOW_HELD_KEYS", "Does a dead letter hold others back?", "messages-of-one-key-stand-still", flow.held),
    Check(
        "FLOW_LEASES",
        "Are leases of crashed workers left?",
        "a-worker-crashed-and-messages-stay-in-sending",
        flow.leases,
    ),
    Check(
        "FLOW_INCOMPLETE",
        "Does every message have a delivery?",
        "a-message-from-plain-sql-is-never-sent",
        flow.incomplete,
    ),
    Check("FLOW_LEDGER", "Are keyed requests left in progress?", "a-keyed-request-stays-in-progress", flow.ledger),
    Check("FLOW_RETENTION", "Does somebody remove what is old?", "the-tables-grow", flow.retention),
    Check("SETTINGS_LEASE", "Do leases outlast a send?", "messages-arrive-twice", settings.lease),
    Check("SETTINGS_INBOX", "Do inboxes remember for long enough?", "messages-arrive-twice", settings.inbox_window),
    Check("SETTINGS_NOTIFY", "Can relays be woken?", "messages-leave-late", settings.notify),
    Check("SETTINGS_EXTRAS", "Is every library installed?", "a-library-is-missing", settings.extras),
    Check("SETTINGS_RELAYS", "Do relays agree?", "relays-disagree", settings.relays),
    Check("SETTINGS_ENABLED", "Are relays switched on?", "nothing-is-sent", settings.enabled),
    Check("SETTINGS_NAMES", "Is every variable a setting?", "a-setting-has-no-effect", settings.variables),
    Check("DB_DURABILITY", "Does a crash undo what was committed?", "a-crash-loses-messages", database.durability),
    Check("DB_CONNECTIONS", "Is there room for connections?", "the-database-cannot-be-reached", database.connections),
    Check("DB_SNAPSHOTS", "Does something keep deleted rows?", "the-relay-gets-slower-and-slower", database.snapshots),
    Check("DB_VACUUM", "Are deleted rows removed?", "the-relay-gets-slower-and-slower", database.vacuum),
    Check("DB_SLOTS", "Does a slot fill the disk?", "the-disk-of-the-database-fills-up", database.slots),
    Check("DB_PREPARES", "Can transactions be prepared?", "a-two-phase-commit-does-not-end", database.prepared_limit),
    Check("DB_JOURNAL", "Does SQLite use a write-ahead log?", "sqlite-is-locked", database.journal),
    Check("DB_DISK", "Is SQLite's file on a local disk?", "sqlite-is-locked", database.disk),
    Check("DB_CLOCK", "Do the clocks agree?", "times-are-wrong", database.clock),
    Check("BROKER_REACHABLE", "Does the broker answer?", "the-broker-is-down", broker.reachable),
    Check("BROKER_TOPICS", "Is there a place for every topic?", "one-topic-takes-no-messages", broker.places),
    Check("BROKER_DURABILITY", "Does a crash lose messages?", "a-crash-loses-messages", broker.durability),
    Check("BROKER_REPLICAS", "Does losing a server lose messages?", "a-crash-loses-messages", broker.replication),
    Check("BROKER_DEDUP", "Are repetitions recognised for long enough?", "messages-arrive-twice", broker.dedup_window),
    Check("BROKER_EVICTION", "Are messages removed when memory is full?", "a-crash-loses-messages", broker.eviction),
    Check("BROKER_PAYLOAD", "Does it take the largest message?", "large-messages-become-dead-letters", broker.payload),
    Check("BROKER_CERTIFICATE", "Is its certificate valid?", "the-certificate-is-not-accepted", broker.certificate),
    Check("BROKER_ENCRYPTION", "Are passwords encrypted?", "the-certificate-is-not-accepted", broker.encryption),
    Check("SAGA_PARKED", "Are sagas parked?", "a-saga-is-parked", unfinished.parked),
    Check("SAGA_STRANDED", "Does every saga have its code?", "a-saga-is-stranded", unfinished.stranded),
    Check("TX_IN_DOUBT", "Are two-phase commits in doubt?", "a-two-phase-commit-does-not-end", unfinished.in_doubt),
    Check("TX_PREPARED", "Are prepared transactions left?", "a-two-phase-commit-does-not-end", unfinished.prepared),
    Check("CDC_SERVER", "Can the write-ahead log be read?", "cdc-the-log-cannot-be-read", stream.server),
    Check("CDC_PUBLICATION", "Does the log show every message?", "cdc-messages-are-missed", stream.publication),
    Check("CDC_SLOT", "Is the slot there, and read?", "cdc-nobody-reads-the-log", stream.slot),
    Check("CDC_WAL", "Is little log held back?", "the-disk-of-the-database-fills-up", stream.held),
    Check("CDC_READER", "Does a relay read the log?", "cdc-nobody-reads-the-log", stream.reader),
    Check("CDC_MODE", "Does the way back to the table end?", "cdc-the-way-back-does-not-end", stream.mode),
    Check("CDC_MISSED", "Was every message read?", "cdc-messages-are-missed", stream.passed_by),
    Check("CDC_PRODUCERS", "Do all producers write to the stream?", "cdc-keys-leave-out-of-order", stream.producers),
)
"""Every check, in the order in which `examine` runs them."""
