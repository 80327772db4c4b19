"""`AsyncCoordinating`: `Coordinating` for async code."""

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


class AsyncCoordinating:
    """Looks at work that spans several transactions, and acts on it."""

    def __init__(self, sagas: SagaSteps, transactions: TransactionSteps) -> None:
        self._sagas = sagas
        self._transactions = transactions

    @abstractmethod
    async def _run(self, steps: Steps[T]) -> T: ...

    async def sagas(
        self, which: SagaFilter = EVERY_SAGA, *, limit: int = 50, before: int | None = None
    ) -> Page[ListedSaga]:
        """`Admin.sagas`."""
        return await self._run(self._sagas.listed(which, limit, before))

    async def saga(self, name: str, id: str, *, data: bool = False) -> SagaDetails:
        """`Admin.saga`."""
        return await self._run(self._sagas.details(name, id, data=data))

    async def saga_counts(self) -> tuple[SagaCount, ...]:
        """`Admin.saga_counts`."""
        return await self._run(self._sagas.counts())

    async def count_sagas(self, which: SagaFilter = EVERY_SAGA) -> SagaTotal:
        """`Admin.count_sagas`."""
        return await self._run(self._sagas.total(which))

    async def resume_sagas(
        self, which: SagaFilter, *, actor: str, reason: str = "", progress: Progress | None = None
    ) -> SagaActResult:
        """`Admin.resume_sagas`."""
        return await self._run(self._sagas.resume(which, Note(actor, reason), progress))

    async def resume_saga(self, name: str, id: str, *, actor: str, reason: str = "") -> None:
        """`Admin.resume_saga`."""
        await self._run(self._sagas.resume_one(name, id, Note(actor, reason)))

    async def skip_saga_steps(
        self,
        which: SagaFilter,
        *,
        actor: str,
        step: str | None = None,
        reason: str = "",
        progress: Progress | None = None,
    ) -> SagaActResult:
        """`Admin.skip_saga_steps`."""
        return await self._run(self._sagas.skip(which, step, Note(actor, reason), progress))

    async def skip_saga_step(
        self, name: str, id: str, *, actor: str, step: str | None = None, reason: str = ""
    ) -> None:
        """`Admin.skip_saga_step`."""
        await self._run(self._sagas.skip_one(name, id, step, Note(actor, reason)))

    async def abort_sagas(
        self, which: SagaFilter, *, actor: str, reason: str = "", progress: Progress | None = None
    ) -> SagaActResult:
        """`Admin.abort_sagas`."""
        return await self._run(self._sagas.abort(which, Note(actor, reason), progress))

    async def abort_saga(self, name: str, id: str, *, actor: str, reason: str = "") -> None:
        """`Admin.abort_saga`."""
        await self._run(self._sagas.abort_one(name, id, Note(actor, reason)))

    async def fork_saga(
        self, name: str, id: str, *, step: str, actor: str, new_id: str | None = None, reason: str = ""
    ) -> SagaFork:
        """`Admin.fork_saga`."""
        return await self._run(self._sagas.fork(name, id, step, new_id, Note(actor, reason)))

    async def transactions(
        self,
        *,
        states: Collection[TransactionState | str] | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> tuple[ListedTransaction, ...]:
        """`Admin.transactions`."""
        return await self._run(self._transactions.listed(states, limit, before))

    async def transaction(self, id: str) -> TransactionDetails:
        """`Admin.transaction`."""
        return await self._run(self._transactions.details(id))

    async def forget_transaction(self, id: str, *, actor: str, reason: str = "") -> None:
        """`Admin.forget_transaction`."""
        await self._run(self._transactions.forget(id, Note(actor, reason)))

    async def decide_transaction(self, id: str, decision: Decision | str, *, actor: str, reason: str = "") -> None:
        """`Admin.decide_transaction`."""
        await self._run(self._transactions.decide(id, decision, Note(actor, reason)))
