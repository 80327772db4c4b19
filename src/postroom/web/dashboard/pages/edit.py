"""Edit and replay: a form with a message in it, and the copy that it makes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from postroom.admin import State
from postroom.errors import DuplicateMessage, InvalidMessage, MessageNotFound, ReplayRefused
from postroom.message import Message
from postroom.web.dashboard.params import BadInput

if TYPE_CHECKING:
    from uuid import UUID

    from starlette.responses import Response

    from postroom.admin import Admin, MessageDetails
    from postroom.web.dashboard.visit import Visit

_OURS = "postroom-"
LARGEST_EDIT = 1024 * 1024


async def edit(visit: Visit) -> Response:
    """A form with the payload and the headers."""
    found = await _original(visit)
    await visit.database.write(
        lambda admin: admin.record_view(found.id, actor=visit.access.name, what="payload, headers")
    )
    return await _form(visit, found, written=None)


async def replay(visit: Visit) -> Response:
    """Send an edited copy. The original stays beside it, unless it is dead and the person wants it discarded.

    A form that is sent twice makes one copy: it has the copy's id in it. What cannot be sent comes back to be mended.
    """
    visit.need_actions()
    visit.need_payloads()
    original, copy = visit.params.uuid("id"), visit.params.uuid("new_id")
    reason = visit.params.text("reason") or ""
    discard = visit.form.get("discard", [""])[-1] == "yes"
    try:
        changes = _changes(visit)
        await visit.database.write(
            lambda admin: admin.replay(
                original,
                actor=visit.access.name,
                reason=reason,
                discard_original=discard,
                new_id=copy,
                **changes,
            )
        )
    except (BadInput, InvalidMessage, ReplayRefused) as error:
        return await _form(visit, await _original(visit), written=visit.form, error=str(error))
    except (DuplicateMessage, MessageNotFound):
        if not await visit.database.read(lambda admin: _is_copy(admin, copy, original)):
            raise
    return await visit.page("replayed", copy=copy, original=original, discarded=discard)


async def _original(visit: Visit) -> MessageDetails:
    visit.need_actions()
    visit.need_payloads()
    wanted = visit.params.uuid("id")
    return await visit.database.read(lambda admin: admin.message(wanted, payload=True, headers=True))


async def _form(visit: Visit, found: MessageDetails, *, written: Any, error: str = "") -> Response:
    payload = _editable(found.payload)
    headers = "\n".join(f"{name}: {value}" for name, value in sorted(_own_headers(found).items()))
    before = {"topic": found.topic or "", "payload": payload, "headers": headers, "reason": ""}
    now = before if written is None else {name: written.get(name, [value])[-1] for name, value in before.items()}
    return await visit.page(
        "edit",
        status=400 if error else 200,
        message=found,
        error=error,
        new_id=Message.new("any").id,
        before=before,
        now=now,
        is_dead=found.status is State.DEAD,
        discards="discard" in written if written is not None else bool(found.key),
    )


def _is_copy(admin: Admin, copy: UUID, original: UUID) -> bool:
    """Whether the form was sent before, and has made its copy."""
    try:
        return admin.message(copy).replay_of == str(original)
    except MessageNotFound:
        return False


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
