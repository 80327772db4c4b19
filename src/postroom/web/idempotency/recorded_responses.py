"""Recorded responses: what `KeyedFlow.record` keeps of a response, and how it is replayed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from postroom.errors import InvalidEntry
from postroom.rules.replay import UNANSWERED, Replay, Response
from postroom.web.idempotency import problems

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

REPLAYED = ("idempotent-replayed", "true")
NOT_KEPT = "postroom-response-not-kept"
"""Marks an entry that does not hold its response."""
EVENT_STREAM = "text/event-stream"
_OWN = frozenset({NOT_KEPT, REPLAYED[0], "content-length"})
"""Never kept: they are set anew."""
_HELD_BACK = frozenset(
    {
        # a session, or what leads to one, belongs to the client that was first
        "set-cookie",
        "set-cookie2",
        "authorization",
        "authentication-info",
        "proxy-authorization",
        "proxy-authenticate",
        "proxy-authentication-info",
        # of one connection or one moment
        "connection",
        "keep-alive",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "date",
        "age",
        "server",
    }
)
_UNSENDABLE = re.compile(r"[\r\n]|[^\x00-\xff]")


def kept(response: Response, names: Collection[str] | None = None) -> Response:
    """The response as it is recorded, with these headers; by default all but credentials and those of the moment."""
    return Response(response.status, tuple(_kept_headers(response.headers, names)), response.body)


def not_kept(response: Response, names: Collection[str] | None = None) -> Response:
    """What is recorded of a response that cannot be kept: that it was given, and its status."""
    return Response(response.status, (*_kept_headers(response.headers, names), (NOT_KEPT, "1")), b"")


def replayed(replay: Replay) -> Response:
    """The response to a client that asks again."""
    response = replay.response
    headers = [(name, value) for name, value in response.headers if name != NOT_KEPT]
    if len(headers) != len(response.headers):
        answer = problems.response_not_kept(response.status)
    elif replay.failed and response == UNANSWERED:
        answer = problems.failed_before()
    else:
        answer = Response(response.status, tuple(headers), response.body)
    return Response(answer.status, (*answer.headers, REPLAYED), answer.body)


def is_event_stream(headers: Iterable[tuple[str, str]]) -> bool:
    """Whether the client expects each part of the response at once, and the end may never come."""
    return any(name.lower() == "content-type" and value.lower().startswith(EVENT_STREAM) for name, value in headers)


def as_response(answer: Any) -> Response:
    """A response of Starlette, FastAPI, Flask or Django, or one of our own, as a `Response`. Raises `InvalidEntry`."""
    response = _read(answer)
    for name, value in response.headers:
        if _UNSENDABLE.search(f"{name}{value}"):
            raise InvalidEntry(f"the response header {name[:40]!r} holds a character that no header can: remove it")
    return response


def _read(answer: Any) -> Response:
    if isinstance(answer, Response):
        return answer
    if hasattr(answer, "raw_headers") and isinstance(getattr(answer, "body", None), bytes | memoryview):
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.raw_headers)
        return Response(answer.status_code, headers, bytes(answer.body))
    if hasattr(answer, "get_data") and not getattr(answer, "direct_passthrough", False):
        return Response(answer.status_code, tuple(answer.headers.items()), answer.get_data())
    if hasattr(answer, "headers") and isinstance(getattr(answer, "content", None), bytes):
        return Response(answer.status_code, tuple(answer.headers.items()), answer.content)
    raise InvalidEntry(
        f"a {type(answer).__name__} is not a response that can be recorded: pass one of Starlette, Flask or Django "
        "that is not a stream, or a postroom.idempotency.Response"
    )


def _kept_headers(headers: Iterable[tuple[str, str]], names: Collection[str] | None) -> Iterable[tuple[str, str]]:
    for name, value in headers:
        lower = name.lower()
        wanted = lower not in _HELD_BACK if names is None else lower in names
        if wanted and lower not in _OWN and "\0" not in name + value:
            yield lower, value
