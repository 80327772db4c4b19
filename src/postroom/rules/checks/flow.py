"""Whether messages move, and what stands in their way."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from postroom.rules.checks.findings import DAY, HOUR, MINUTE, Finding, counted, fail, lasting, named, ok, warn
from postroom.rules.naming import TWOPHASE_QUEUE, is_saga_queue
from postroom.rules.routing import ANYTHING, HANDLERS, PREFIX, is_parked, is_routed

SLOW = MINUTE
"""Seconds after which the oldest message makes people ask."""
STUCK = 15 * MINUTE
"""Seconds after which nothing seems to move any more."""
LEFT_BEHIND = 5 * MINUTE
"""Seconds after its end for which a lease may stand: the next claim replaces it."""
SLACK = DAY
"""How late retention may be."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The unsent messages of a queue. Counts stop at a limit."""

    queue: str
    pending: int = 0
    later: int = 0
    """Scheduled, or waiting for their next attempt."""
    dead: int = 0
    oldest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HeldKey:
    """Messages that wait behind a failed or dead one of their key."""

    queue: str
    key: str
    waiting: int
    blocker: str
    """The id of the message that holds them back."""
    is_dead: bool


@dataclass(frozen=True, slots=True)
class DownWorker:
    """A relay or consumer that cannot reach its broker."""

    name: str
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class Overdue:
    """The age of the oldest row that retention should have removed, for each kind of row; 0: there is none."""

    settled: float = 0.0
    marks: float = 0.0
    entries: float = 0.0
    """Seconds since it expired."""
    left_to_partitions: float = 0.0
    """Seconds for which a cleanup leaves settled messages to their partition."""


def workers(queues: Sequence[Waiting], served: Collection[str]) -> Finding:
    """Whether every queue with messages has a living worker."""
    waiting = [one for one in queues if one.pending or one.later]
    unserved = [one for one in waiting if one.queue not in served]
    if not unserved:
        evidence = f"{counted(len(waiting), 'queue')} with messages, {counted(len(served), 'queue')} with a worker"
        return ok(evidence, queues=len(waiting), served=len(served))
    evidence = named(f"{one.queue} ({one.pending + one.later:,} unsent)" for one in unserved)
    figures = {one.queue: one.pending + one.later for one in unserved}
    remedy = _start(max(unserved, key=lambda one: one.pending).queue)
    if any(one.pending for one in unserved):
        return fail(f"no worker is alive for: {evidence}", remedy, unserved=figures)
    return warn(f"no worker is alive for what is due later: {evidence}", remedy, unserved=figures)


def _start(queue: str) -> str:
    if is_parked(queue):
        return f"start `postroom consume --app MODULE:OBJECT` with the consumer {queue.removeprefix(HANDLERS)}"
    if is_saga_queue(queue):
        return "start `postroom relay --app MODULE:OBJECT` with this saga"
    if queue == TWOPHASE_QUEUE:
        return "start `postroom relay --app MODULE:OBJECT` with this TwoPhaseCommit"
    if is_routed(queue) and queue != f"{PREFIX}{ANYTHING}":
        return f"start a relay with `--broker-for {queue.removeprefix(PREFIX)}=URL`"
    return "start `postroom relay`"


def oldest(queues: Sequence[Waiting]) -> Finding:
    """Whether messages leave soon after they could."""
    waited, queue = max(((one.oldest_seconds, one.queue) for one in queues), default=(0.0, ""))
    if waited < SLOW:
        return ok(f"the oldest message has waited for {lasting(waited)}", seconds=waited)
    evidence = f"the oldest message of the queue {queue} could have left {lasting(waited)} ago"
    remedy = f"see why: `postroom messages list --queue {queue} --status pending`, then `postroom messages show ID`"
    return (fail if waited >= STUCK else warn)(evidence, remedy, seconds=waited, queue=queue)


def dead(codes: Mapping[str, int], *, more: bool) -> Finding:
    """Whether messages were given up. `codes`: how many for each reason; `more`: there are more than were counted."""
    total = sum(codes.values())
    if not total:
        return ok("no dead letters", dead=0)
    by_count = sorted(codes.items(), key=lambda one: (-one[1], one[0]))
    evidence = f"{counted(total, 'dead letter')}{' or more' if more else ''}: "
    evidence += named(f"{count:,} {code or 'without a code'}" for code, count in by_count)
    remedy = "look at them with `postroom dead list`, mend the cause, then `postroom dead requeue` or `discard` them"
    return warn(evidence, remedy, dead=total, codes=dict(by_count))


def held(keys: Sequence[HeldKey]) -> Finding:
    """Whether messages wait behind a dead one of their key. Behind one that is retried, they wait as they should."""
    stuck = sorted((one for one in keys if one.is_dead), key=lambda one: -one.waiting)
    if not stuck:
        return ok(f"{counted(len(keys), 'key')} behind a retry, none behind a dead letter", retried=len(keys))
    behind = named(f"{counted(one.waiting, 'message')} behind {one.blocker}" for one in stuck)
    figures = [{"queue": one.queue, "waiting": one.waiting, "blocker": one.blocker} for one in stuck]
    remedy = f"`postroom dead requeue {stuck[0].blocker}`, or `discard` it"
    return warn(f"{counted(len(stuck), 'key')} held back by a dead letter: {behind}", remedy, keys=figures)


def targets(topics: Mapping[str, tuple[int, str]]) -> Finding:
    """Whether topics take no messages. `topics`: how many wait for each, and why."""
    if not topics:
        return ok("every topic takes its messages", topics=0)
    evidence = named(f"{topic} ({count:,} waiting): {why}" for topic, (count, why) in topics.items())
    remedy = "create the topic, or allow the relay to publish to it; its messages then leave by themselves"
    return fail(f"topics that take no messages: {evidence}", remedy, waiting={t: n for t, (n, _) in topics.items()})


def broker_down(alive: int, down: Sequence[DownWorker]) -> Finding:
    """Whether relays and consumers reach their brokers."""
    if not down:
        return ok(f"{counted(alive, 'worker')} alive, none without its broker", alive=alive)
    evidence = named(f"{one.name} on {one.host}: {one.reason}" for one in down)
    remedy = "bring the broker back, or mend its URL in `broker`; no attempt is counted until then"
    figures = {"alive": alive, "down": len(down)}
    return (fail if len(down) == alive else warn)(f"without a broker: {evidence}", remedy, **figures)


def leases(stale: int, longest_seconds: float) -> Finding:
    """Whether leases of crashed workers stand that nobody has taken over."""
    if not stale or longest_seconds < LEFT_BEHIND:
        return ok("no lease stands past its end", stale=stale)
    evidence = f"{counted(stale, 'lease')} ended up to {lasting(longest_seconds)} ago, and nobody has claimed since"
    return warn(evidence, "start `postroom relay`: it claims them", stale=stale, seconds=longest_seconds)


def retention(overdue: Overdue, keep: float, keep_marks: float, *, by_relay: bool) -> Finding:
    """Whether somebody removes what is old. Times in seconds."""
    late = [
        f"{name} of {lasting(age)} ago, kept for {lasting(limit)}"
        for name, age, limit, slack in (
            ("messages settled", overdue.settled, keep, SLACK + overdue.left_to_partitions),
            ("inbox marks", overdue.marks, keep_marks, SLACK),
        )
        if age > limit + slack
    ]
    if overdue.entries > SLACK:
        late.append(f"idempotency keys that expired {lasting(overdue.entries)} ago")
    if not late:
        return ok("nothing is kept for longer than it should be", by_relay=by_relay)
    remedy = "run `postroom cleanup` every day"
    remedy += ", or set `cleanup_every_sec` to 3600 for the relays" if not by_relay else ": no relay does"
    return warn(f"nobody removes what is old: {'; '.join(late)}", remedy, by_relay=by_relay)


def incomplete(ids: Sequence[str], looked_at: int) -> Finding:
    """Whether messages have no delivery, as a program leaves them that writes one of the two rows."""
    if not ids:
        return ok(f"the newest {counted(looked_at, 'message')} are complete", looked_at=looked_at)
    evidence = (
        f"{counted(len(ids), 'message')} of the newest {looked_at:,} without a delivery, never sent: {named(ids)}"
    )
    remedy = f"have the producer insert both rows at once, and remove the half: `postroom messages cancel {ids[0]}`"
    return fail(evidence, remedy, incomplete=len(ids))


def ledger(unfinished: int, longest_seconds: float) -> Finding:
    """Whether keyed requests stand in progress though nobody works on them any more."""
    if not unfinished or longest_seconds < HOUR:
        return ok("no keyed request is left in progress", unfinished=unfinished)
    evidence = (
        f"{counted(unfinished, 'keyed request')} in progress whose run ended up to {lasting(longest_seconds)} ago"
    )
    remedy = "nothing is lost: the next request with the key runs it again; look into the log for what ended them"
    return warn(evidence, remedy, unfinished=unfinished, seconds=longest_seconds)
