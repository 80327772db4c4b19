"""Whether the database is set up for what is asked of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.rules.checks.findings import HOUR, MINUTE, Finding, counted, fail, lasting, named, ok, skip, warn

SKEW = 5.0
"""Seconds by which two clocks may differ."""
CROWDED, FULL = 0.8, 0.95
"""Shares of the connections in use."""
OLD_SNAPSHOT, STALE_SNAPSHOT = 5 * MINUTE, HOUR
MOST_DEAD = 100_000
"""Dead rows of the delivery table that a vacuum in good health does not let come together."""
MOST_HISTORY = 1_000_000
"""Transactions whose old rows InnoDB has not removed yet."""
SLOT_BYTES = 1024**3
"""Log that a slot may keep."""


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps an old snapshot, and so the rows that were deleted since."""

    kind: str
    """``session``, ``slot`` or ``prepared transaction``."""
    who: str
    seconds: float | None
    """For how long; None if nobody knows."""
    remedy: str


def reachable(seconds: float, version: str) -> Finding:
    """It has answered."""
    return ok(f"{version} answered within {seconds * 1000:.0f} ms", seconds=round(seconds, 4))


def unreachable(reason: str) -> Finding:
    """It has not."""
    return fail(reason, "start the database, or mend its URL in `database`")


def no_driver(reason: str) -> Finding:
    """Its library is not installed."""
    return fail(reason, "install the library: see SETTINGS_EXTRAS")


def no_file(reason: str) -> Finding:
    """SQLite's file does not exist."""
    return fail(reason, "run `postroom init`, or mend the URL in `database`")


def writable(refusal: str | None) -> Finding:
    """Whether this is a server that takes writes."""
    if refusal is None:
        return ok("it takes writes")
    return fail(f"it takes no writes: {refusal}", "point `database` at the primary server")


def clock(skew: float) -> Finding:
    """Whether this host's clock agrees with the database's, whose alone decides about leases."""
    figures = {"skew_seconds": round(skew, 3)}
    if abs(skew) < SKEW:
        return ok(f"the clocks differ by {abs(skew):.3f} s", **figures)
    evidence = f"this host's clock is {lasting(abs(skew))} {'ahead of' if skew > 0 else 'behind'} the database's"
    return warn(evidence, "synchronise both clocks (NTP): moments that programs compute are off by as much", **figures)


def connections(used: int, most: int) -> Finding:
    """Whether there is room for more connections."""
    evidence = f"{used:,} of {most:,} connections are in use"
    remedy = "raise max_connections, or put a pooler between applications and database; a relay needs six"
    if used >= most * FULL:
        return fail(evidence, remedy, used=used, most=most)
    if used >= most * CROWDED:
        return warn(evidence, remedy, used=used, most=most)
    return ok(evidence, used=used, most=most)


def snapshots(holders: Sequence[Holder]) -> Finding:
    """Whether something keeps deleted rows from being removed, which slows every claim."""
    old = [one for one in holders if one.seconds is None or one.seconds >= OLD_SNAPSHOT]
    if not old:
        longest = max((one.seconds or 0.0 for one in holders), default=0.0)
        return ok(f"the oldest snapshot is {lasting(longest)} old", seconds=longest)
    oldest = max(old, key=lambda one: one.seconds or 0.0)
    evidence = named(f"{one.kind} {one.who} for {_time(one.seconds)}" for one in old)
    figures = {"holders": [{"kind": one.kind, "who": one.who, "seconds": one.seconds} for one in old]}
    stale = (oldest.seconds or 0.0) >= STALE_SNAPSHOT
    return (fail if stale else warn)(f"old snapshots keep deleted rows: {evidence}", oldest.remedy, **figures)


def _time(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else lasting(seconds)


def vacuum(dead: int, live: int, last_seconds: float | None, *, is_on: bool) -> Finding:
    """Whether deleted deliveries are removed from their table."""
    last = "never" if last_seconds is None else f"{lasting(last_seconds)} ago"
    evidence = f"{dead:,} dead and {live:,} live rows in the delivery table, last vacuum: {last}"
    figures = {"dead": dead, "live": live, "last_vacuum_seconds": last_seconds}
    if not is_on:
        remedy = "set autovacuum = on, for the server and for the delivery table"
        return fail(f"autovacuum is off; {evidence}", remedy, **figures)
    if dead > max(MOST_DEAD, live):
        remedy = "see DB_SNAPSHOTS for what holds vacuum up, then VACUUM the delivery table"
        return warn(evidence, remedy, **figures)
    return ok(evidence, **figures)


def purge(length: int) -> Finding:
    """Whether InnoDB removes old versions of rows."""
    evidence = f"the history list has a length of {length:,}"
    if length > MOST_HISTORY:
        remedy = "see DB_SNAPSHOTS for the transaction that holds purge up, and end it"
        return warn(f"{evidence}: reads walk over old versions of rows", remedy, history=length)
    return ok(evidence, history=length)


def postgresql_durability(*, fsync: bool, full_page_writes: bool, synchronous_commit: str) -> Finding:
    """Whether PostgreSQL keeps what it has committed."""
    figures = {"fsync": fsync, "full_page_writes": full_page_writes, "synchronous_commit": synchronous_commit}
    if not fsync:
        return fail("fsync is off: a crash may ruin the database", "set fsync = on in postgresql.conf", **figures)
    if not full_page_writes:
        evidence = "full_page_writes is off: a crash may ruin pages, unless the file system prevents it"
        return warn(evidence, "set full_page_writes = on in postgresql.conf", **figures)
    if synchronous_commit == "off":
        evidence = "synchronous_commit is off: a crash may undo the last transactions of your applications"
        remedy = "set synchronous_commit = on; relays use it in any case, so nothing is sent that a crash undoes"
        return warn(evidence, remedy, **figures)
    return ok(f"fsync is on, synchronous_commit is {synchronous_commit}", **figures)


def mysql_durability(*, flush: int, binlog: bool, sync_binlog: int, doublewrite: bool) -> Finding:
    """Whether InnoDB keeps what it has committed."""
    figures = {"innodb_flush_log_at_trx_commit": flush, "sync_binlog": sync_binlog, "doublewrite": doublewrite}
    if flush != 1:
        evidence = f"innodb_flush_log_at_trx_commit is {flush}: a crash may undo what was committed, and sent"
        return fail(evidence, "set innodb_flush_log_at_trx_commit = 1", **figures)
    if binlog and sync_binlog != 1:
        evidence = f"sync_binlog is {sync_binlog}: after a crash, replicas may differ from this server"
        return warn(evidence, "set sync_binlog = 1", **figures)
    if not doublewrite:
        return warn("innodb_doublewrite is off: a crash may ruin pages", "set innodb_doublewrite = 1", **figures)
    return ok("innodb_flush_log_at_trx_commit is 1", **figures)


def slots(kept: Sequence[tuple[str, int]]) -> Finding:
    """Whether a replication slot that nobody reads fills the disk. `kept`: the name and the bytes of each."""
    large = [(name, size) for name, size in kept if size >= SLOT_BYTES]
    if not large:
        return ok(f"{counted(len(kept), 'replication slot')} without a reader, none with much log", slots=len(kept))
    evidence = named(f"{name} keeps {size / SLOT_BYTES:.1f} GB" for name, size in large)
    remedy = f"start its reader, or SELECT pg_drop_replication_slot('{large[0][0]}'); set max_slot_wal_keep_size"
    return fail(f"slots that nobody reads fill the disk: {evidence}", remedy, slots=dict(large))


def prepared_limit(limit: int, connections: int, *, is_used: bool) -> Finding:
    """Whether PostgreSQL can prepare as many transactions as may be open."""
    figures = {"max_prepared_transactions": limit, "max_connections": connections, "two_phase_commit": is_used}
    if not is_used:
        return skip("no two-phase commit is on record here")
    remedy = f"set max_prepared_transactions = {connections} in postgresql.conf, and restart the server"
    if limit == 0:
        return fail("max_prepared_transactions is 0: no two-phase commit can prepare here", remedy, **figures)
    if limit < connections:
        evidence = f"max_prepared_transactions is {limit}, below max_connections, {connections}"
        return warn(f"{evidence}: under load, preparing may be refused", remedy, **figures)
    return ok(f"max_prepared_transactions is {limit}", **figures)


def journal(mode: str, wal_bytes: int) -> Finding:
    """Whether SQLite's readers and its writer get along."""
    figures = {"journal_mode": mode, "wal_bytes": wal_bytes}
    if mode not in ("wal", "memory"):
        evidence = f"the journal mode is {mode}: readers and the writer block each other"
        return warn(evidence, "run PRAGMA journal_mode = WAL once, while nothing else is connected", **figures)
    if wal_bytes >= SLOT_BYTES:
        evidence = f"the write-ahead log has {wal_bytes / SLOT_BYTES:.1f} GB: a reader that never ends holds it"
        return warn(evidence, "end transactions that only read, then run PRAGMA wal_checkpoint(TRUNCATE)", **figures)
    return ok(f"the journal mode is {mode}", **figures)


NETWORK_DISKS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs", "lustre"}
)
VOLATILE_DISKS = frozenset({"tmpfs", "ramfs"})


def disk(kind: str | None) -> Finding:
    """Whether SQLite's file is on a disk of this machine."""
    if kind is None:
        return skip("which disk the file is on cannot be found out here")
    if kind in NETWORK_DISKS:
        evidence = f"the file is on a network disk ({kind}), where SQLite's locks and log do not work"
        return fail(evidence, "move it to a disk of this machine, or use PostgreSQL or MariaDB", disk=kind)
    if kind in VOLATILE_DISKS:
        return warn(f"the file is in memory ({kind}): a restart loses it", "move it to a disk", disk=kind)
    return ok(f"the file is on {kind}", disk=kind)
