"""`Coordinating`: the part of `Admin` for sagas and two-phase commits."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from postroom.store.admin.audit import Note
from postroom.store.admin.saga_filter import EVERY_SAGA, SagaFilter

if TYPE_CHECKING:
    from collections.abc import Collection

    from postroom.admin.results import Page
    from postroom.admin.saga_details import SagaDetails
    from postroom.admin.saga_results import SagaActResult, SagaFork, SagaTotal
    from postroom.admin.saga_steps import SagaSteps
    from postroom.admin.transaction_steps import TransactionDetails, TransactionSteps
    from postroom.rules.twophase_plan import Decision
    from postroom.rules.twophase_state import TransactionState
    from postroom.store.admin.sagas import ListedSaga, SagaCount
    from postroom.store.admin.selection import Progress
    from postroom.store.admin.transactions import ListedTransaction
    from postroom.store.sql.steps import Steps

T = TypeVar("T")


class Coordinating:
    """Looks at work that spans several transactions, and acts on it."""

    def __init__(self, sagas: SagaSteps, transactions: TransactionSteps) -> None:
        self._sagas = sagas
        self._transactions = transactions

    @abstractmethod
    def _run(self, steps: Steps[T]) -> T: ...

    def sagas(self, which: SagaFilter = EVERY_SAGA, *, limit: int = 50, before: int | None = None) -> Page[ListedSaga]:
        """Sagas, newest first, without their data. ``before`` is the `next` of the page before.

        Open ones are found quickly, however many have ended. No index helps to find ended ones by name, error or age:
        the database reads backwards until the page is full.
        """
        return self._run(self._sagas.listed(which, limit, before))

    def saga(self, name: str, id: str, *, data: bool = False) -> SagaDetails:
        """Everything about a saga: what was done, what comes next, and what to do if it is stuck.

        Its data, results and events only if asked for. Raises `SagaNotFound`.
        """
        return self._run(self._sagas.details(name, id, data=data))

    def saga_counts(self) -> tuple[SagaCount, ...]:
        """How many sagas there are, by name and state. Reads all of them."""
        return self._run(self._sagas.counts())

    def count_sagas(self, which: SagaFilter = EVERY_SAGA) -> SagaTotal:
        """How many sagas match."""
        return self._run(self._sagas.total(which))

    def resume_sagas(
        self, which: SagaFilter, *, actor: str, reason: str = "", progress: Progress | None = None
    ) -> SagaActResult:
        """Let parked sagas go on where they stopped: due at once, with all attempts before them.

        What is not parked is left alone. Works in batches, each a transaction that also writes the audit;
        ``progress`` receives the size of each. When it raises, the batches before have been done: call it again.
        """
        return self._run(self._sagas.resume(which, Note(actor, reason), progress))

    def resume_saga(self, name: str, id: str, *, actor: str, reason: str = "") -> None:
        """`resume_sagas` for one. Raises `SagaNotFound`, or `SagaActRefused` if it is not parked."""
        self._run(self._sagas.resume_one(name, id, Note(actor, reason)))

    def skip_saga_steps(
        self,
        which: SagaFilter,
        *,
        actor: str,
        step: str | None = None,
        reason: str = "",
        progress: Progress | None = None,
    ) -> SagaActResult:
        """Put the step or compensation that fails on record as skipped, and let the saga go on behind it.

        It is for what has been done by hand. A step that is skipped is not undone if the saga goes back. ``step`` names
        it, which is needed in a group of which several are left. Without ids and states in the filter, it applies to
        parked and stranded sagas; by id, also to one that waits for a retry. Otherwise like `resume_sagas`.
        """
        return self._run(self._sagas.skip(which, step, Note(actor, reason), progress))

    def skip_saga_step(self, name: str, id: str, *, actor: str, step: str | None = None, reason: str = "") -> None:
        """`skip_saga_steps` for one. Raises `SagaNotFound`, or `SagaActRefused` if there is nothing to skip."""
        self._run(self._sagas.skip_one(name, id, step, Note(actor, reason)))

    def abort_sagas(
        self, which: SagaFilter, *, actor: str, reason: str = "", progress: Progress | None = None
    ) -> SagaActResult:
        """Undo sagas that have not ended: whoever runs one loses it, and its running step cannot commit.

        One that has passed its pivot, or goes back already, is left alone. Otherwise like `resume_sagas`.
        """
        return self._run(self._sagas.abort(which, Note(actor, reason), progress))

    def abort_saga(self, name: str, id: str, *, actor: str, reason: str = "") -> None:
        """`abort_sagas` for one. Raises `SagaNotFound`, or `SagaActRefused` if it can no longer be aborted."""
        self._run(self._sagas.abort_one(name, id, Note(actor, reason)))

    def fork_saga(
        self, name: str, id: str, *, step: str, actor: str, new_id: str | None = None, reason: str = ""
    ) -> SagaFork:
        """Start a new saga from a step of an old one that has ended or is parked.

        The new one has the old one's plan, first data and time limit. It takes over what the steps before ``step``
        returned and how they changed the data, and never undoes them: they belong to the old saga. Without ``new_id``
        it gets a new id. Raises `SagaNotFound`, or `SagaActRefused` if a step before was undone or not done.
        """
        return self._run(self._sagas.fork(name, id, step, new_id, Note(actor, reason)))

    def transactions(
        self,
        *,
        states: Collection[TransactionState | str] | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> tuple[ListedTransaction, ...]:
        """Two-phase commits that are on record here, latest deadline first: in these states, or all not settled.

        The database must be that of the log. For the next page, give the id of the last one as ``before``.
        """
        return self._run(self._transactions.listed(states, limit, before))

    def transaction(self, id: str) -> TransactionDetails:
        """Everything about a two-phase commit: what was decided, who has not confirmed it, and what to do.

        Raises `TransactionNotFound`.
        """
        return self._run(self._transactions.details(id))

    def forget_transaction(self, id: str, *, actor: str, reason: str = "") -> None:
        """Have recovery leave a two-phase commit alone that it cannot finish, because it was finished by hand.

        What was decided stays on record for as long as settled ones do. Raises `TransactionNotFound`, or
        `TransactionActRefused` if it is settled, or if its deadline has not passed.
        """
        self._run(self._transactions.forget(id, Note(actor, reason)))

    def decide_transaction(self, id: str, decision: Decision | str, *, actor: str, reason: str = "") -> None:
        """Decide a two-phase commit that is undecided, because only a person can know what its last resource did.

        ``decision`` is commit or abort. Recovery then has all participants do it. Raises `TransactionNotFound`, or
        `TransactionActRefused` if it is decided, or if its deadline has not passed.
        """
        self._run(self._transactions.decide(id, decision, Note(actor, reason)))
