"""Whether the brokers keep what they are given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from postroom.rules.checks.findings import DAY, Finding, counted, fail, lasting, named, ok, sized, skip, warn

SOON, VERY_SOON = 30 * DAY, 7 * DAY
"""How long before its end a certificate should be renewed."""
SAFE_REPLICAS = 2
_NO_PLACE = "no place of a topic in use is known"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker keeps the messages of a topic: a stream, queue or topic. None: the broker does not tell."""

    topic: str
    name: str = ""
    """Its name, if it differs from the topic's."""
    missing: str = ""
    """Why there is none."""
    weakness: str = ""
    """Why it may lose what it has taken; empty if it does not."""
    remedy: str = ""
    """What mends the weakness."""
    unknown: str = ""
    """Why it cannot be told whether it is durable."""
    dedup_seconds: float | None = None
    max_bytes: int | None = None
    replicas: int | None = None
    min_insync: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What a broker says about itself."""

    seconds: float = 0.0
    """How long it took to answer."""
    version: str = ""
    places: Sequence[Place] = ()
    max_bytes: int | None = None
    """The largest message that the server, or the URL's option, allows."""
    limit_name: str = ""
    """The name of that limit."""
    weakness: str = ""
    """Why the whole server may lose what it has taken."""
    remedy: str = ""
    eviction: str | None = None
    """What it does when its memory is full; None: there is no such thing."""
    memory_limit: int = 0
    deduplicates: bool = False
    figures: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate that a server shows."""

    problem: str = ""
    """Why it is not accepted."""
    seconds_left: float = 0.0


def reachable(known: BrokerFacts) -> Finding:
    """It has answered."""
    told = f"{known.version} answered" if known.version else "it took a connection"
    return ok(f"{told} within {known.seconds * 1000:.0f} ms", seconds=round(known.seconds, 4), version=known.version)


def unreachable(reason: str) -> Finding:
    """It has not."""
    return fail(f"it cannot be reached: {reason}", "start it, or mend its URL in `broker`; messages wait meanwhile")


def places(known: BrokerFacts) -> Finding:
    """Whether there is a place for every topic in use."""
    if not known.places:
        return skip("no topics are known: the outbox has no messages for it, and no routes name any")
    missing = [place for place in known.places if place.missing]
    if not missing:
        return ok(f"{counted(len(known.places), 'topic')}, each with a place", topics=len(known.places))
    evidence = named(f"{place.topic}: {place.missing}" for place in missing)
    remedy = "create it, or let the relay: add ?declare=true to the broker's URL where it can"
    return fail(f"no place for: {evidence}", remedy, missing=[place.topic for place in missing])


def durability(known: BrokerFacts) -> Finding:
    """Whether messages survive a crash of a server."""
    if known.weakness:
        return fail(known.weakness, known.remedy, **known.figures)
    there = [place for place in known.places if not place.missing]
    weak = [place for place in there if place.weakness]
    if weak:
        evidence = named(f"{place.name or place.topic}: {place.weakness}" for place in weak)
        return fail(evidence, weak[0].remedy, weak=[place.topic for place in weak])
    unknown = [place for place in there if place.unknown]
    if unknown:
        return skip(named(f"{place.name or place.topic}: {place.unknown}" for place in unknown))
    if not there and not known.figures:
        return skip(_NO_PLACE)
    return ok("what it has taken is on disk", **known.figures)


def replication(known: BrokerFacts) -> Finding:
    """Whether messages survive the loss of a server."""
    told = [place for place in known.places if place.replicas is not None]
    if not told:
        return skip("it does not tell how many replicas there are" if known.places else _NO_PLACE)
    alone = [place for place in told if (place.replicas or 0) < SAFE_REPLICAS]
    if alone:
        evidence = named(
            f"{place.name or place.topic} has {counted(place.replicas or 0, 'replica')}" for place in alone
        )
        remedy = "give it three replicas, on three servers"
        return warn(f"lost with their server: {evidence}", remedy, topics=[place.topic for place in alone])
    careless = [place for place in told if place.min_insync is not None and place.min_insync < SAFE_REPLICAS]
    if careless:
        evidence = named(f"{place.name or place.topic} ({place.min_insync})" for place in careless)
        remedy = "set min.insync.replicas=2 for the topic"
        return fail(
            f"one replica is enough to confirm a message: {evidence}", remedy, topics=[p.topic for p in careless]
        )
    return ok(f"{min(place.replicas or 0 for place in told)} replicas or more")


def dedup_window(known: BrokerFacts, needed: float) -> Finding:
    """Whether the broker recognises a message that is sent again after a lost lease."""
    windows = {p.name or p.topic: p.dedup_seconds for p in known.places if p.dedup_seconds is not None}
    if not windows:
        return skip(_NO_PLACE if known.deduplicates else "it drops no repeated messages by itself: receivers do")
    name, shortest = min(windows.items(), key=lambda one: one[1])
    figures = {"window": shortest, "needed": needed}
    if shortest < needed:
        evidence = f"{name} recognises a repeated message for {lasting(shortest)}, a lease lasts {lasting(needed)}"
        remedy = f"raise the stream's duplicate window to {needed:g} s or more; until then, inboxes drop repetitions"
        return warn(evidence, remedy, **figures)
    return ok(f"repeated messages are recognised for {lasting(shortest)}", **figures)


def eviction(known: BrokerFacts) -> Finding:
    """Whether the broker forgets messages when its memory is full."""
    if known.eviction is None:
        return skip("it does not remove messages when its memory is full")
    figures = {"maxmemory_policy": known.eviction, "maxmemory": known.memory_limit}
    if known.eviction == "noeviction":
        return ok("maxmemory-policy is noeviction", **figures)
    evidence = f"maxmemory-policy is {known.eviction}: when memory is full, streams are removed"
    if not known.memory_limit:
        return warn(f"{evidence}; no maxmemory is set yet", "CONFIG SET maxmemory-policy noeviction", **figures)
    return fail(evidence, "CONFIG SET maxmemory-policy noeviction, and in redis.conf", **figures)


def payload(known: BrokerFacts, max_payload: int) -> Finding:
    """Whether the broker takes the largest message that the outbox takes."""
    limits = [(limit, place.name or place.topic) for place in known.places if (limit := place.max_bytes) is not None]
    if known.max_bytes is not None:
        limits.append((known.max_bytes, known.limit_name))
    if not limits:
        return skip("it has no limit, or does not tell it")
    limit, name = min(limits)
    figures = {"max_payload_bytes": max_payload, "limit": limit}
    if max_payload > limit:
        evidence = f"the outbox takes payloads of {sized(max_payload)}, the broker only {sized(limit)} ({name})"
        remedy = f"set max_payload_bytes to {limit} or less, or raise the broker's limit"
        return warn(f"{evidence}: what is larger becomes a dead letter", remedy, **figures)
    return ok(f"payloads have up to {sized(max_payload)}, the broker takes {sized(limit)}", **figures)


def certificate(shown: Certificate | None) -> Finding:
    """Whether the server's certificate is accepted, and for how long."""
    if shown is None:
        return skip("the connection is not encrypted")
    if shown.problem:
        remedy = "renew the certificate, or name its authority in the URL: ?ca=FILE"
        return fail(f"the certificate is not accepted: {shown.problem}", remedy)
    figures = {"seconds_left": round(shown.seconds_left)}
    evidence = f"the certificate is valid for another {lasting(shown.seconds_left)}"
    if shown.seconds_left < VERY_SOON:
        return fail(evidence, "renew it now", **figures)
    if shown.seconds_left < SOON:
        return warn(evidence, "renew it", **figures)
    return ok(evidence, **figures)


def encryption(*, encrypted: bool, has_password: bool, is_local: bool, secure_scheme: str) -> Finding:
    """Whether a password travels in the clear."""
    if encrypted or is_local or not has_password:
        return ok("encrypted" if encrypted else "this machine" if is_local else "no password")
    evidence = "a password, and every message, travels unencrypted"
    return warn(evidence, f"use {secure_scheme}:// in the broker's URL")
