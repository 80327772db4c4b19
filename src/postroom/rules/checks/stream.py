"""Whether the stream can be read, is read, and holds nothing back: for outboxes that use CDC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from postroom.rules.checks.findings import MINUTE, Finding, counted, fail, lasting, named, ok, sized, skip, warn
from postroom.rules.stream.modes import OLDEST_SERVER, Mode

MUCH = 1024**3
"""Bytes of write-ahead log that a slot may hold back before somebody should look."""
LIMIT_SHARE = 0.5
"""The share of the server's own limit that it may hold back."""
LATE = 5 * MINUTE
"""Seconds that the way back to the table may take before somebody should look."""
STARTING = MINUTE
"""Seconds for which nobody need read a stream that was just begun: relays restart, and leases end by themselves."""
UNCONFIRMED = 15 * MINUTE
"""Seconds after which Debezium should have confirmed what was added."""
ANEW = (
    "`postroom cdc debezium off --no-wait`, have relays send the rest, then `postroom cdc debezium on`, and make the "
    "connector anew"
)
UNUSED = skip("cdc is off, and the outbox is in the table")


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """What the server says about the slot."""

    name: str
    is_active: bool
    wal_status: str
    held_bytes: int


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """How a stream stands."""

    wanted: bool
    """Whether the setting `cdc` is on."""
    mode: Mode = Mode.TABLE
    mode_seconds: float = 0.0
    reader: str = ""
    slot_name: str = ""
    slot: SlotFacts | None = None
    most_held_bytes: int | None = None
    publication: str = ""
    has_publication: bool = False
    is_published: bool = False
    wal_level: str = "logical"
    version: int = OLDEST_SERVER
    may_replicate: bool = True
    pooled: bool = False
    takes_any_standby: bool = False
    """`synchronous_standby_names` has ``*``."""
    is_of_debezium: bool = False
    """Debezium reads the outbox, or has to send what it was given."""
    unconfirmed_seconds: float = 0.0
    """How long ago that was added which Debezium should have confirmed; 0 if there is nothing."""

    @property
    def used(self) -> bool:
        """Whether it matters how the stream stands."""
        return self.wanted or self.mode is not Mode.TABLE


def server(found: StreamFacts) -> Finding:
    """Whether the server, the role and the way to it let anybody read the log."""
    if not found.used:
        return UNUSED
    figures = {"wal_level": found.wal_level, "version": found.version, "may_replicate": found.may_replicate}
    if found.version < OLDEST_SERVER:
        evidence = f"this is PostgreSQL {found.version}: publications of some columns begin with {OLDEST_SERVER}"
        return fail(evidence, "upgrade the server, or leave cdc out", **figures)
    if found.wal_level != "logical":
        remedy = "set wal_level = logical in postgresql.conf, and restart the server"
        return fail(f"wal_level is {found.wal_level}: the log does not say what was inserted", remedy, **figures)
    is_ours = not found.is_of_debezium  # else a connector reads, with a role and an address of its own
    if found.takes_any_standby or (found.pooled and is_ours):
        evidence = "a pooler is between here and the server: it hands on no replication"
        remedy = "give relays the server's own address"
        if found.takes_any_standby:
            evidence = (
                "synchronous_standby_names has *: who reads the stream counts as a standby, and commits wait for it"
            )
            remedy = "name the standbys in synchronous_standby_names"
        return fail(evidence, remedy, **figures)
    if not found.may_replicate and is_ours:
        evidence = "the database's user has no REPLICATION, which whoever reads the log needs"
        return warn(evidence, "`postroom schema --grants ROLE --for cdc` prints what the relays' role needs", **figures)
    return ok(f"wal_level is logical, on PostgreSQL {found.version}", **figures)


def publication(found: StreamFacts) -> Finding:
    """Whether the publication shows what is in the stream. What it does not show, no reader sees."""
    figures = {"publication": found.publication, "mode": found.mode.value}
    if found.is_published:
        return ok(f"{found.publication} shows what the stream needs", **figures)
    if not found.used:
        return UNUSED
    evidence = f"{found.publication} is of another table, other columns or other rows"
    if not found.has_publication:
        evidence = f"there is no publication {found.publication}"
    if found.mode is Mode.TABLE:
        return warn(evidence, "`postroom cdc setup`, or start `postroom relay --cdc`: it makes it", **figures)
    remedy = "restart `postroom relay --cdc`: it makes it anew, and sends what was missed"
    if found.is_of_debezium:
        remedy = ANEW
    return fail(f"{evidence}: readers miss messages", remedy, **figures)


def slot(found: StreamFacts) -> Finding:
    """Whether the slot is there while it is needed, is read while it is there, and gone when it is not."""
    figures = {"slot": found.slot_name, "mode": found.mode.value, "reader": found.reader}
    if found.is_of_debezium:
        return _slot_of_debezium(found, figures)
    start = "start `postroom relay --cdc`, or go back with `postroom cdc off`"
    there = found.slot
    if there is None:
        if found.mode is not Mode.STREAM:
            return ok("no slot, and none is needed", **figures) if found.used else UNUSED
        evidence = f"the slot {found.slot_name} is gone, and the outbox is in the stream"
        return fail(evidence, f"{start}: either sends what was missed", **figures)
    if found.mode is Mode.TABLE:
        evidence = f"the slot {there.name} is there, and the outbox is in the table: it holds write-ahead log back"
        return fail(f"{evidence}, {sized(there.held_bytes)}", "`postroom cdc off` drops it", **figures)
    return _slot_in_use(found, there, start, figures)


def _slot_in_use(found: StreamFacts, there: SlotFacts, start: str, figures: Mapping[str, object]) -> Finding:
    if there.wal_status == "lost":
        evidence = f"the slot {there.name} is lost: the server removed log that nobody had read"
        return fail(evidence, f"{start}; raise max_slot_wal_keep_size", **figures)
    if not there.is_active and not found.reader:
        evidence = f"nobody reads the slot {there.name}, which keeps {sized(there.held_bytes)} of write-ahead log"
        return fail(evidence, start, **figures)
    return ok(f"{there.name} is read by {found.reader or 'a relay'}", **figures)


def _slot_of_debezium(found: StreamFacts, figures: Mapping[str, object]) -> Finding:
    there = found.slot
    if there is None or there.wal_status == "lost":
        evidence = f"Debezium's slot {found.slot_name} is {'gone' if there is None else 'lost'}"
        return fail(f"{evidence}: what it has not sent is in the table alone", ANEW, **figures)
    if not there.is_active:
        evidence = f"no connector reads the slot {there.name}, which keeps {sized(there.held_bytes)} of write-ahead log"
        remedy = "start Debezium's connector, or take the outbox back with `postroom cdc debezium off --no-wait`"
        return (warn if found.mode_seconds < LATE else fail)(evidence, remedy, **figures)
    return ok(f"{there.name} is read by Debezium", **figures)


def held(found: StreamFacts) -> Finding:
    """Whether the slot holds back so much log that the disk fills up, or the slot is given up."""
    there, most = found.slot, found.most_held_bytes
    if there is None:
        return skip("there is no slot")
    figures = {"held_bytes": there.held_bytes, "wal_status": there.wal_status, "most_held_bytes": most}
    limit = "" if most is None else f" of {sized(most)} that max_slot_wal_keep_size allows"
    evidence = f"{sized(there.held_bytes)}{limit} of write-ahead log held back"
    remedy = "see what the reader waits for: `postroom cdc status`; or go back to the table with `postroom cdc off`"
    if found.is_of_debezium:
        remedy = "see what Debezium's connector says; or take the outbox back with `postroom cdc debezium off`"
    if there.wal_status in ("unreserved", "lost"):
        return fail(f"the log is {there.wal_status}: {evidence}", remedy, **figures)
    if there.held_bytes >= MUCH or (most is not None and there.held_bytes >= LIMIT_SHARE * most):
        return warn(evidence, remedy, **figures)
    return ok(evidence, **figures)


def reader(found: StreamFacts) -> Finding:
    """Whether a relay reads the stream, or Debezium confirms what it was given."""
    if found.is_of_debezium:
        return _confirmed_by_debezium(found)
    if found.mode is not Mode.STREAM:
        return skip(f"the outbox is not in the stream: its mode is {found.mode}") if found.used else UNUSED
    if found.reader:
        return ok(f"{found.reader} reads", reader=found.reader)
    remedy = "start `postroom relay --cdc`, or go back with `postroom cdc off`"
    since = {"reader": "", "mode_seconds": found.mode_seconds}
    if found.mode_seconds < STARTING:
        return warn("nobody reads the stream, which was begun just now", remedy, **since)
    return fail("nobody reads the stream: what producers add is not sent", remedy, **since)


def _confirmed_by_debezium(found: StreamFacts) -> Finding:
    """Kafka Connect confirms once a minute; cleanups note how far it should be."""
    seconds = found.unconfirmed_seconds
    if seconds < UNCONFIRMED:
        return ok("nothing that the last cleanup has found is overdue at Debezium", unconfirmed_seconds=seconds)
    evidence = f"Debezium has not confirmed what was added {lasting(seconds)} ago: its slot does not move"
    remedy = "see what its connector says, and whether `lsn.flush.mode` is as in docs/guide/debezium.md"
    return fail(evidence, remedy, unconfirmed_seconds=seconds)


def mode(found: StreamFacts) -> Finding:
    """Whether the way back to the table has come to a stop. Keys rest meanwhile."""
    figures = {"mode": found.mode.value, "seconds": found.mode_seconds}
    if not found.mode.lanes_rest:
        return ok(f"the mode is {found.mode}", **figures) if found.used else UNUSED
    evidence = f"the outbox has been {found.mode} for {lasting(found.mode_seconds)}, and messages with keys rest"
    if found.mode_seconds < LATE:
        return ok(evidence, **figures)
    command = "postroom cdc debezium off" if found.is_of_debezium else "postroom cdc off"
    return fail(evidence, f"`{command}` goes on with it, and says what it waits for", **figures)


def passed_by(found: StreamFacts, ids: Sequence[str], looked_at: int, *, read_past: bool) -> Finding:
    """Whether messages in the stream were missed: neither sent nor on record, though the reader is past them.

    `ids` are the newest that are neither; `read_past`: whether all that was committed by then was read.
    """
    if not ids:
        return ok(f"of the newest {counted(looked_at, 'message')} in the stream, none was missed", looked_at=looked_at)
    figures = {"missed": len(ids), "looked_at": looked_at}
    if found.mode is Mode.TABLE:
        evidence = f"{counted(len(ids), 'message')} left in the stream, which nobody reads any more: {named(ids)}"
        return fail(evidence, "`postroom cdc sweep` gives them deliveries", **figures)
    if found.is_of_debezium:
        return skip(f"{counted(len(ids), 'message')} without a receipt: Debezium's get theirs by cleanups")
    if not read_past:
        return skip(f"{counted(len(ids), 'message')} in the stream, which the reader has not come to yet")
    evidence = f"{counted(len(ids), 'message')} neither sent nor on record, though read past: {named(ids)}"
    return fail(
        evidence, "stop every `postroom relay --cdc`, run `postroom cdc sweep`, and start them again", **figures
    )


def producers(found: StreamFacts, topics: Sequence[str], looked_at: int) -> Finding:
    """Whether producers without `cdc` write deliveries beside the stream, with keys that others may use.

    `topics`: one for each message with a key that has, or had, a delivery from the start.
    """
    if found.mode is not Mode.STREAM:
        return skip(f"the outbox is not in the stream: its mode is {found.mode}") if found.used else UNUSED
    if not topics:
        return ok(f"the newest {counted(looked_at, 'message')} with a key all went to the stream", looked_at=looked_at)
    evidence = f"{counted(len(topics), 'message')} with a key went past the stream, to {named(topics)}"
    remedy = "set `cdc` for every producer (POSTROOM_CDC=true): a key that both ways use may leave out of order"
    return warn(evidence, remedy, messages=len(topics), looked_at=looked_at)
