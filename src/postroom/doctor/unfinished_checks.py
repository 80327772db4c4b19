"""Looks at sagas and two-phase commits that wait for somebody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.checks import unfinished
from postroom.rules.saga_state import SagaState

if TYPE_CHECKING:
    from postroom.doctor.surroundings import Surroundings
    from postroom.rules.checks.findings import Finding


def parked(at: Surroundings) -> Finding:
    """Sagas that were given up."""
    return unfinished.parked(_sagas(at, SagaState.PARKED))


def stranded(at: Surroundings) -> Finding:
    """Sagas whose code is gone."""
    return unfinished.stranded(_sagas(at, SagaState.STRANDED))


def in_doubt(at: Surroundings) -> Finding:
    """Two-phase commits that are not settled."""
    return unfinished.in_doubt(at.read(at.traffic.unsettled_transactions()))


def prepared(at: Surroundings) -> Finding:
    """Prepared transactions that are left behind."""
    return at.read(at.server.prepared())


def _sagas(at: Surroundings, state: SagaState) -> dict[str, int]:
    from postroom.store.admin.sagas import Sagas

    counts = at.once("sagas", lambda: at.read(Sagas(at.names).open_counts()))
    return {one.name: one.count for one in counts if one.state is state}
