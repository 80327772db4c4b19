"""The receiver of webhooks: an ASGI application that verifies each request and passes its message to a consumer."""

from __future__ import annotations

import asyncio
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from postroom.brokers import webhook_signatures as signatures
from postroom.brokers.cloudevents import HTTP, incoming, is_structured
from postroom.consumer.outcomes import Fate
from postroom.errors import PostroomError
from postroom.rules.naming import dedup_id_of
from postroom.rules.replay import Response
from postroom.web.http import read_body, respond

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroom.consumer import Consumer
    from postroom.incoming import Incoming
    from postroom.web.http import Receive, Scope, Send

TOLERANCE = 300
"""Seconds that a request's timestamp may be off: an old request may be a recorded one."""
PATIENCE = 20.0
"""Seconds until a sender is asked to try again, because the database is unreachable or handlers are slow."""
RETRY_AFTER = "5"
EVENT_ID = "ce-id"
"""Unsigned attributes do not identify a message, the signed webhook-id does: otherwise an eavesdropper could send a
message again under another id, as another source's, or to another path."""
UNSIGNED = "the event's attributes are not signed: send webhook-attributes-signature, or the event in structured mode"
NO_EVENT = (
    "this is not a CloudEvent, and its path, which would be its topic, is not signed: send a CloudEvent, or have "
    "the receiver take it with unsigned_attributes=True"
)
OTHER_ID = (
    "webhook-id is not the event's id: send the same one, or have the receiver take it with unsigned_attributes=True"
)
MEGABYTE = 1024 * 1024


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class Receiver:
    """Takes messages by POST, as CloudEvents in either mode or plain, and answers 204 when they are settled.

    Before it answers, a message is handled, parked or a dead letter. If that takes longer than ``patience`` seconds,
    the answer is 503, and the message is recognised when it comes again.

    ``secret`` is ``whsec_`` and base64; several during a rotation. None accepts unsigned requests, for receivers behind
    an authentication of their own. The standard's signature covers only the body. So an event in binary mode also needs
    a signature of its attributes, which relays send; otherwise somebody on the way could choose its handler. An event
    in structured mode must use its own id as ``webhook-id``. ``unsigned_attributes`` accepts events without either, and
    webhooks that are not events: their topic is the path.

    As an application of its own, it starts and stops the consumer. If you mount it in another application, do that
    there with ``async with consumer``. Raises `InvalidSetting` for an invalid secret.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        secret: str | Sequence[str] | None,
        unsigned_attributes: bool = False,
        max_bytes: int = MEGABYTE,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        secrets = [secret] if isinstance(secret, str) else secret
        self._consumer = consumer
        self._keys = None if secrets is None else [signatures.key_of(one) for one in secrets]
        self._unsigned_attributes = unsigned_attributes
        self._most = max_bytes
        self._patience = patience
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        match scope["type"]:
            case "lifespan":
                await self._live(receive, send)
            case "http":
                await self._answer(scope, receive, send)
            case other:
                raise NotImplementedError(f"a receiver of webhooks knows http, not {other}")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._consumer.__aenter__()
        except PostroomError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._consumer.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            message = await self._message(scope, receive)
            await self._handle(message)
        except _Refused as refused:
            body = msgspec.json.encode({"title": str(refused), "status": int(refused.status)})
            headers = (("content-type", "application/problem+json"), *refused.headers.items())
            await respond(send, Response(int(refused.status), headers, body))
        else:
            await respond(send, Response(204))

    async def _message(self, scope: Scope, receive: Receive) -> Incoming:
        if scope["method"] != "POST":
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "messages come by POST", allow="POST")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        body = await self._body(headers, receive)
        self._verify(headers, body)
        unsigned = self._keys is not None and self._unsigned_attributes
        if unsigned and _has_attributes(headers):
            headers[EVENT_ID] = HTTP.attribute_value(headers[signatures.ID])
        topic = scope["path"].removeprefix(scope.get("root_path", "")).strip("/")
        message = incoming(HTTP, headers, body, id=headers.get(signatures.ID, ""), topic=topic)
        if message.problem is not None:
            raise _Refused(HTTPStatus.BAD_REQUEST, message.problem)
        if not message.id:
            raise _Refused(HTTPStatus.BAD_REQUEST, "the message has no id: send webhook-id or ce-id")
        if self._keys is None:
            return message
        if unsigned:
            return msgspec.structs.replace(message, assigned_dedup_id=dedup_id_of(None, headers[signatures.ID], ""))
        if message.id != headers[signatures.ID] and is_structured(headers):
            raise _Refused(HTTPStatus.UNAUTHORIZED, OTHER_ID)
        return message

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        too_large = _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {self._most} bytes")
        if headers.get("content-length", "").isdecimal() and int(headers["content-length"]) > self._most:
            raise too_large
        body = await read_body(receive, self._most)
        if body is None:
            raise _Refused(HTTPStatus.BAD_REQUEST, "the request ended before its body")
        if len(body.content) > self._most:
            raise too_large
        return body.content

    def _verify(self, headers: Mapping[str, str], body: bytes) -> None:
        if self._keys is None:
            return
        name, sent = headers.get(signatures.ID, ""), headers.get(signatures.TIMESTAMP, "")
        if not name or not re.fullmatch(r"[0-9]{1,12}", sent):
            raise _Refused(HTTPStatus.UNAUTHORIZED, "webhook-id, webhook-timestamp and webhook-signature are needed")
        if abs(self._clock() - int(sent)) > TOLERANCE:
            raise _Refused(HTTPStatus.UNAUTHORIZED, "webhook-timestamp is too far from the time here")
        if not signatures.is_signed(self._keys, name, int(sent), body, headers.get(signatures.SIGNATURE, "")):
            raise _Refused(HTTPStatus.UNAUTHORIZED, "webhook-signature is not that of this message")
        if self._unsigned_attributes or is_structured(headers):
            return
        if not _has_attributes(headers):
            raise _Refused(HTTPStatus.UNAUTHORIZED, NO_EVENT)
        keys = map(signatures.attributes_key, self._keys)
        given = headers.get(signatures.ATTRIBUTES_SIGNATURE, "")
        if not signatures.is_signed(keys, name, int(sent), signatures.attributes(headers), given):
            raise _Refused(HTTPStatus.UNAUTHORIZED, UNSIGNED)

    async def _handle(self, message: Incoming) -> None:
        later = {"retry-after": RETRY_AFTER}
        handling = asyncio.ensure_future(self._consumer.handle(message))
        done, _ = await asyncio.wait({handling}, timeout=self._patience)
        if not done:
            handling.add_done_callback(_retrieve_error)
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "not done yet: send it again", **later)
        if handling.result() is Fate.UNDONE:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "stopping: send it again", **later)


def _has_attributes(headers: Mapping[str, str]) -> bool:
    """Whether headers describe the message. In structured mode the body does, and headers do not count."""
    return not is_structured(headers) and any(name.startswith(signatures.ATTRIBUTE) for name in headers)


def _retrieve_error(handling: asyncio.Future[Fate]) -> None:
    """Nobody waits for the error any longer: the message comes again."""
    if not handling.cancelled():
        handling.exception()
