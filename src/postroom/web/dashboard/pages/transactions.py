"""Two-phase commits: those in doubt, one of them, and what only a person can decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.admin import TransactionState

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroom.web.dashboard.visit import Visit

PER_PAGE = 50


async def transactions(visit: Visit) -> Response:
    """A page of the list: those that are not settled, or those in a state."""
    state, before = visit.params.choice("state", TransactionState), visit.params.text("before", 255)
    states = None if state is None else [state]
    found = await visit.database.read(
        lambda admin: admin.transactions(states=states, limit=PER_PAGE + 1, before=before)
    )
    listed = found[:PER_PAGE]
    return await visit.page(
        "transactions",
        listed=listed,
        state_=state,
        states=list(TransactionState),
        next=listed[-1].id if len(found) > PER_PAGE else None,
        before=before,
    )


async def transaction(visit: Visit) -> Response:
    """Everything about one."""
    identifier = visit.params.needed("id")
    found = await visit.database.read(lambda admin: admin.transaction(identifier))
    open_ = found.transaction.settled_at is None and found.transaction.past_deadline
    undecided = found.transaction.decision.name == "OPEN"
    return await visit.page(
        "transaction", found=found, may_forget=open_, may_decide=open_ and undecided, confirming=None
    )


async def decide(visit: Visit) -> Response:
    """Commit, abort or forget one: first ask, then do it."""
    visit.need_actions()
    identifier = visit.params.needed("id")
    action = visit.params.one_of("action", "commit", "abort", "forget")
    name, reason = visit.access.name, visit.params.text("reason") or ""
    if visit.params.text("sure") != "yes":
        found = await visit.database.read(lambda admin: admin.transaction(identifier))
        return await visit.page("transaction", found=found, may_forget=False, may_decide=False, confirming=action)
    if action == "forget":
        await visit.database.write(lambda admin: admin.forget_transaction(identifier, actor=name, reason=reason))
    else:
        await visit.database.write(
            lambda admin: admin.decide_transaction(identifier, action, actor=name, reason=reason)
        )
    from urllib.parse import urlencode

    return visit.redirect(f"transaction?{urlencode({'id': identifier})}")
