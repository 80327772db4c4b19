"""One message: where it stands, what happened to it, and what can be done."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from postroom.admin import State
from postroom.rules.why_not_sent import STREAMED
from postroom.web.dashboard.params import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from postroom.admin import MessageDetails
    from postroom.web.dashboard.visit import Visit

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
_OURS = "postroom-"
LARGEST_EDIT = 1024 * 1024
UNSENT = (State.PENDING, State.WAITING, None)


async def message(visit: Visit) -> Response:
    """The page without the payload."""
    wanted = visit.params.uuid("id")
    found = await visit.database.read(lambda admin: admin.message(wanted, headers=True))
    return await _page(visit, found, shown=False)


async def reveal(visit: Visit) -> Response:
    """The page with the payload and the headers. The audit log says who looked."""
    visit.need_payloads()
    wanted = visit.params.uuid("id")
    found = await visit.database.read(lambda admin: admin.message(wanted, payload=True, headers=True))
    # First on record, then on the screen.
    await visit.database.write(
        lambda admin: admin.record_view(wanted, actor=visit.access.name, what="payload, headers")
    )
    return await _page(visit, found, shown=True)


async def edit(visit: Visit) -> Response:
    """A form with the payload and the headers."""
    visit.need_actions()
    visit.need_payloads()
    wanted = visit.params.uuid("id")
    found = await visit.database.read(lambda admin: admin.message(wanted, payload=True, headers=True))
    await visit.database.write(
        lambda admin: admin.record_view(wanted, actor=visit.access.name, what="payload, headers")
    )
    return await visit.page(
        "edit",
        message=found,
        payload=_editable(found.payload),
        headers="\n".join(f"{name}: {value}" for name, value in sorted(_own_headers(found).items())),
        is_dead=found.status is State.DEAD,
    )


async def replay(visit: Visit) -> Response:
    """Send an edited copy. The original stays beside it, unless it is dead and the person wants it discarded."""
    visit.need_actions()
    visit.need_payloads()
    original, reason = visit.params.uuid("id"), visit.params.text("reason") or ""
    changes = _changes(visit)
    discard = visit.form.get("discard", [""])[-1] == "yes"
    done = await visit.database.write(
        lambda admin: admin.replay(
            original, actor=visit.access.name, reason=reason, discard_original=discard, **changes
        )
    )
    return await visit.page("replayed", done=done)


async def _page(visit: Visit, found: MessageDetails, *, shown: bool) -> Response:
    failed_at = found.delivery.failed_at if found.delivery else None
    return await visit.page(
        "message",
        as_of=max(filter(None, (found.created_at, failed_at)), default=visit.now),
        live=not shown,
        message=found,
        shown=shown,
        trace=_trace(visit.trace_link, found.header_values or {}),
        may_requeue=found.status is State.DEAD,
        may_cancel=found.status in UNSENT and found.why.reason not in STREAMED,
    )


def _trace(link: str | None, headers: Mapping[str, str]) -> str | None:
    """The address of the message's trace."""
    written = next((value for name, value in headers.items() if name.lower() == "traceparent"), "")
    found = _TRACEPARENT.fullmatch(written.strip().lower())
    return link.replace("{trace_id}", found[1]) if link and found else None


def _own_headers(found: MessageDetails) -> dict[str, str]:
    return {name: value for name, value in (found.header_values or {}).items() if not name.startswith(_OURS)}


def _editable(payload: bytes | None) -> str | None:
    """The payload as text; None if it is not text, or too large for a form."""
    if payload is None or len(payload) > LARGEST_EDIT:
        return None
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    try:
        pretty = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        # Only if nothing is lost, such as the digits of a large number or a key that is there twice.
        return pretty if json.loads(pretty, parse_float=str) == json.loads(text, parse_float=str) else text
    except (ValueError, RecursionError):
        return text


def _changes(visit: Visit) -> dict[str, Any]:
    """What the form changes; what it leaves out stays."""
    changes: dict[str, Any] = {}
    given = {name: values[-1].replace("\r\n", "\n") for name, values in visit.form.items()}
    if "payload" in given and given["payload"] != given.get("payload_before", "").replace("\r\n", "\n"):
        changes["payload"] = given["payload"].encode()
    if "headers" in given and given["headers"].strip() != given.get("headers_before", "").strip():
        changes["headers"] = _headers(given["headers"])
    if (topic := visit.params.text("topic", 255)) and topic != given.get("topic_before"):
        changes["topic"] = topic
    return changes


def _headers(text: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise BadInput(f"the header {line!r} is not valid: write one a line, as in name: value")
        headers[name.strip()] = value.strip()
    return headers
