"""Look up what was received, and what was answered: the inbox by message, the ledger by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroom.web.dashboard.visit import Visit

PER_PAGE = 50


async def lookup(visit: Visit) -> Response:
    """The forms, and what was found."""
    return await _page(visit, body=False)


async def reveal(visit: Visit) -> Response:
    """The recorded response of one key. The audit log says who looked."""
    visit.need_payloads()
    key, scope = visit.params.needed("key"), visit.params.text("scope", 255) or ""
    what = f"ledger response of key {key!r} in scope {scope!r}"
    await visit.database.write(lambda admin: admin.record_view(None, actor=visit.access.name, what=what))
    return await _page(visit, body=True)


async def _page(visit: Visit, *, body: bool) -> Response:
    params = visit.params
    message, consumer = params.text("message", 255), params.text("consumer", 255)
    key, scope, after = params.text("key", 255), params.text("scope", 255), params.text("after", 255)
    marks: Any = None
    entries: Any = None
    if message:
        marks = await visit.database.read(lambda admin: admin.inbox_marks(message, consumer=consumer))
    if key or scope:
        if body:
            scope = scope or ""  # the one that was shown
        entries = await visit.database.read(
            lambda admin: admin.ledger_entries(key=key, scope=scope, body=body, limit=PER_PAGE, after=after)
        )
    given = {"message": message, "consumer": consumer, "key": key, "scope": scope, "after": after}
    return await visit.page(
        "lookup",
        marks=marks,
        entries=entries,
        shown=body,
        next=entries[-1].key if entries and not key and len(entries) == PER_PAGE else None,
        given={name: value or "" for name, value in given.items()},
    )
