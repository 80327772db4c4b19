"""Sagas and two-phase commits that wait for somebody."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from postroom.rules.checks.findings import HOUR, MINUTE, Finding, counted, fail, lasting, named, ok, warn

SETTLING = 5 * MINUTE
"""Seconds that a recovery may take."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction that is prepared, and holds its locks until somebody ends it."""

    id: str
    seconds: float | None
    """None if the database does not tell."""
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Two-phase commits that have not ended."""

    stuck: int = 0
    undecided: int = 0
    """Past their deadline."""
    open: int = 0
    """Decided, but not finished everywhere."""
    oldest_seconds: float = 0.0
    example: str = ""


def parked(sagas: Mapping[str, int]) -> Finding:
    """Whether sagas were given up. `sagas`: how many, by name."""
    total = sum(sagas.values())
    if not total:
        return ok("no saga is parked", parked=0)
    evidence = f"{counted(total, 'saga')} parked: {named(f'{count:,} {name}' for name, count in sagas.items())}"
    remedy = "look at them with `postroom sagas list --state parked`, mend the cause, then `postroom sagas resume`"
    return fail(evidence, remedy, parked=dict(sagas))


def stranded(sagas: Mapping[str, int]) -> Finding:
    """Whether sagas need code that no relay has."""
    total = sum(sagas.values())
    if not total:
        return ok("every saga has its code", stranded=0)
    evidence = f"{counted(total, 'saga')} stranded: {named(f'{count:,} {name}' for name, count in sagas.items())}"
    remedy = "deploy a version of the code that has the step which `postroom sagas list --state stranded` names"
    return fail(evidence, remedy, stranded=dict(sagas))


def in_doubt(found: Unsettled) -> Finding:
    """Whether two-phase commits wait to be settled."""
    figures = {"stuck": found.stuck, "undecided": found.undecided, "open": found.open, "oldest": found.oldest_seconds}
    remedy = f"see what to do: `postroom transactions show {found.example}`"
    if found.stuck:
        return fail(f"{counted(found.stuck, 'two-phase commit')} stuck: recovery cannot finish them", remedy, **figures)
    if found.undecided + found.open and found.oldest_seconds >= SETTLING:
        evidence = f"{counted(found.undecided + found.open, 'two-phase commit')} in doubt"
        evidence += f", the oldest for {lasting(found.oldest_seconds)}"
        remedy = "run `postroom relay --app MODULE:OBJECT` with the TwoPhaseCommit, which recovers them"
        return (fail if found.oldest_seconds >= HOUR else warn)(evidence, remedy, **figures)
    return ok("no two-phase commit is in doubt", **figures)


def prepared(left: Sequence[Prepared]) -> Finding:
    """Whether prepared transactions are left behind, which keep locks and snapshots."""
    old = [one for one in left if one.seconds is None or one.seconds >= SETTLING]
    if not old:
        return ok(f"{counted(len(left), 'prepared transaction')}, none for long", prepared=len(left))
    evidence = named(f"{one.id}{'' if one.seconds is None else f' for {lasting(one.seconds)}'}" for one in old)
    if all(one.is_ours for one in old):
        remedy = "run `postroom transactions recover --app MODULE:OBJECT`, or a relay with the TwoPhaseCommit"
    else:
        remedy = "have the program that prepared it end it, or end it by hand: ROLLBACK PREPARED, XA ROLLBACK"
    certain = any(one.seconds is not None for one in old)
    return (fail if certain else warn)(f"left prepared: {evidence}", remedy, prepared=[one.id for one in old])
