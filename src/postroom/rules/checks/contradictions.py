"""Settings that contradict each other, or what is installed and running."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from postroom.rules.checks.findings import Finding, counted, fail, lasting, named, ok, skip, warn
from postroom.rules.routing import PREFIX

COMFORT = 2.0
"""A lease should be at least this many times as long as a send may take."""


@dataclass(frozen=True, slots=True)
class RunningRelay:
    """A relay that is alive."""

    name: str
    queues: frozenset[str]
    """Of those that messages wait in for a broker."""
    down: bool
    """It cannot reach one of its brokers."""


def lease(lease_seconds: float, lane_seconds: float, timeout_seconds: float) -> Finding:
    """Whether leases outlast a send."""
    shortest = min(lease_seconds, lane_seconds)
    name = "lock_lease_sec" if shortest == lease_seconds else "lane_lease_sec"
    figures = {"lease": lease_seconds, "lane_lease": lane_seconds, "broker_timeout": timeout_seconds}
    evidence = f"{name} is {lasting(shortest)}, and a send may take {lasting(timeout_seconds)} (broker_timeout_ms)"
    remedy = f"set {name} to {timeout_seconds * COMFORT:g} or more, or lower broker_timeout_ms"
    if shortest <= timeout_seconds:
        return fail(f"{evidence}: it is sent twice when a send is slow", remedy, **figures)
    if shortest < COMFORT * timeout_seconds:
        return warn(f"{evidence}: a renewal may come too late", remedy, **figures)
    return ok(evidence, **figures)


def inbox_window(window: float, retries: float, oldest_dead: float | None) -> Finding:
    """Whether inboxes remember for longer than a message may be repeated. Times in seconds."""
    figures = {"window": window, "retries": retries, "oldest_dead": oldest_dead}
    if window <= retries:
        evidence = f"inboxes remember for {lasting(window)}, and a message may be retried for {lasting(retries)}"
        return fail(evidence, "raise inbox_retention_days, so that a late retry is still recognised", **figures)
    if oldest_dead is not None and oldest_dead > window:
        evidence = f"a dead letter is {lasting(oldest_dead)} old, and inboxes remember for {lasting(window)}"
        remedy = "raise inbox_retention_days, or discard what is too old to requeue: requeued, it may take effect twice"
        return warn(evidence, remedy, **figures)
    return ok(f"inboxes remember for {lasting(window)}, retries take up to {lasting(retries)}", **figures)


def notify(*, wanted: bool, pooled: bool) -> Finding:
    """Whether relays can be woken if that is wanted."""
    if wanted and pooled:
        return warn(
            "notify is on, but the connection goes through a pooler, where LISTEN hears nothing: relays poll",
            "give relays a direct connection in `database`, or turn notify off",
            notify=wanted,
            pooled=pooled,
        )
    words = "through a pooler" if pooled else "direct"
    return ok(f"notify is {'on' if wanted else 'off'}, the connection is {words}", notify=wanted, pooled=pooled)


def extras(missing: Mapping[str, str]) -> Finding:
    """Whether the libraries are installed that the settings need. `missing`: what needs it → the extra."""
    if not missing:
        return ok("every library that the settings need is installed")
    wanted = ",".join(sorted(set(missing.values())))
    return fail(f"libraries are missing for: {named(missing)}", f"run pip install 'postroom[{wanted}]'", missing=wanted)


def relays_agree(relays: Sequence[RunningRelay]) -> Finding:
    """Whether all relays route to the same brokers, and reach them alike."""
    if not relays:
        return skip("no relay is alive")
    routes = {relay.queues for relay in relays}
    if len(routes) > 1:
        everywhere = frozenset.intersection(*routes)
        evidence = named(
            f"{one.name} alone serves {_listed(one.queues - everywhere)}" for one in relays if one.queues - everywhere
        )
        remedy = "start all relays with the same `broker` and `brokers`: otherwise they move messages to and fro"
        return fail(f"relays disagree about where topics go: {evidence}", remedy, relays=len(relays))
    down = [relay.name for relay in relays if relay.down]
    if down and len(down) < len(relays):
        evidence = f"{named(down)} cannot reach a broker that {counted(len(relays) - len(down), 'other relay')} can"
        return warn(evidence, "compare their `broker` settings, and their networks", relays=len(relays), down=len(down))
    return ok(f"{counted(len(relays), 'relay')}, with the same routes", relays=len(relays))


def _listed(queues: frozenset[str]) -> str:
    return named(sorted(queue.removeprefix(PREFIX) for queue in queues))


def enabled(*, is_on: bool, pending: int) -> Finding:
    """Whether relays are switched off while messages wait."""
    if not is_on and pending:
        evidence = f"`enabled` is off, so relays exit at once, and {counted(pending, 'message')} wait"
        return warn(evidence, "set POSTROOM_ENABLED=true", enabled=is_on, pending=pending)
    return ok(f"`enabled` is {'on' if is_on else 'off'}, and {counted(pending, 'message')} wait", enabled=is_on)


def known(variables: Sequence[str]) -> Finding:
    """Whether environment variables look like settings, but are none."""
    if not variables:
        return ok("every POSTROOM_ variable is a setting")
    return warn(
        f"not settings: {named(variables)}", "correct their names, see the table of settings", names=list(variables)
    )
