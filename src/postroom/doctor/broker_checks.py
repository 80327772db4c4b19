"""Looks at each broker of the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postroom.doctor.surroundings import NotChecked
from postroom.errors import BrokerUnavailable
from postroom.rules.checks import brokers
from postroom.rules.checks.findings import skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.doctor.surroundings import BrokerSeat, Surroundings
    from postroom.rules.checks.brokers import BrokerFacts
    from postroom.rules.checks.findings import Finding


def reachable(at: Surroundings) -> list[Finding]:
    """Whether it answers."""

    def look(seat: BrokerSeat) -> Finding:
        try:
            return brokers.reachable(at.facts(seat))
        except (BrokerUnavailable, TimeoutError) as error:
            return brokers.unreachable(str(error).removeprefix(f"{seat.name}: "))

    return _each(at, look)


def places(at: Surroundings) -> list[Finding]:
    """Streams, queues and topics."""
    return _by_facts(at, brokers.places)


def durability(at: Surroundings) -> list[Finding]:
    """What a crash loses."""
    return _by_facts(at, brokers.durability)


def replication(at: Surroundings) -> list[Finding]:
    """What the loss of a server loses."""
    return _by_facts(at, brokers.replication)


def dedup_window(at: Surroundings) -> list[Finding]:
    """For how long repetitions are recognised."""
    return _by_facts(at, lambda known: brokers.dedup_window(known, at.settings.lock_lease_sec))


def eviction(at: Surroundings) -> list[Finding]:
    """What happens when memory is full."""
    return _by_facts(at, brokers.eviction)


def payload(at: Surroundings) -> list[Finding]:
    """The largest message."""
    return _by_facts(at, lambda known: brokers.payload(known, at.settings.max_payload_bytes))


def certificate(at: Surroundings) -> list[Finding]:
    """Until when its certificate is valid."""

    def look(seat: BrokerSeat) -> Finding:
        try:
            return brokers.certificate(at.certificate(seat))
        except OSError as error:
            raise BrokerUnavailable(str(error)) from error

    return _each(at, look)


def encryption(at: Surroundings) -> list[Finding]:
    """Passwords in the clear."""

    def look(seat: BrokerSeat) -> Finding:
        one = seat.inspector
        if one is None:
            raise NotChecked(seat.problem)
        return brokers.encryption(
            encrypted=one.encrypted,
            has_password=one.has_secret,
            is_local=one.is_local,
            secure_scheme=one.secure_scheme,
        )

    return _each(at, look)


def _by_facts(at: Surroundings, judge: Callable[[BrokerFacts], Finding]) -> list[Finding]:
    return _each(at, lambda seat: judge(at.facts(seat)))


def _each(at: Surroundings, look: Callable[[BrokerSeat], Finding]) -> list[Finding]:
    """Look at each broker; one that is away does not keep the others from being looked at."""
    found: list[Finding] = []
    for seat in at.brokers():
        try:
            finding = look(seat)
        except NotChecked as reason:
            finding = skip(str(reason))
        except (BrokerUnavailable, TimeoutError):
            finding = skip("the broker cannot be reached: see BROKER_REACHABLE")
        found.append(replace(finding, subject=seat.name))
    if not found:
        raise NotChecked("no broker is given: use --broker URL, or set POSTROOM_BROKER")
    return found
