"""The middleware's own responses: problems as RFC 9457 defines them. They never repeat a key."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from postroom.rules.replay import Response

SOON = 2
"""Seconds: the longest Retry-After. A request is usually done long before its lease ends."""


class RequestRefused(Exception):
    """The request must not run. It gets this response."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"refused with {response.status}")
        self.response = response


def problem(status: int, name: str, title: str, *headers: tuple[str, str], **members: Any) -> Response:
    """A response of the type ``urn:postroom:idempotency:<name>``."""
    body = {"type": f"urn:postroom:idempotency:{name}", "title": title, "status": status, **members}
    return Response(status, (("content-type", "application/problem+json"), *headers), msgspec.json.encode(body))


def missing_key() -> Response:
    """The route requires a key."""
    return problem(HTTPStatus.BAD_REQUEST, "key-missing", "This request needs an Idempotency-Key.")


def invalid_key(reason: str) -> Response:
    """What was sent is not a key."""
    return problem(
        HTTPStatus.BAD_REQUEST,
        "key-invalid",
        "The Idempotency-Key cannot be used: 1 to 255 visible characters are needed.",
        detail=reason,
    )


def sender_unknown() -> Response:
    """Nothing tells whose key it is."""
    return problem(
        HTTPStatus.BAD_REQUEST,
        "sender-unknown",
        "The Idempotency-Key cannot be used: the request has no credential that says whose it is.",
        detail="Send the request with its credentials, such as an Authorization header. If the application identifies "
        "its clients in another way, it must set the idempotency middleware's option scope.",
    )


def request_incomplete(reason: str) -> Response:
    """A part of the request is missing."""
    return problem(
        HTTPStatus.BAD_REQUEST,
        "request-incomplete",
        "The request did not come whole, and was not begun.",
        detail=reason,
    )


def request_too_large(most: int) -> Response:
    """The body exceeds the limit for keyed requests."""
    return problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "request-too-large",
        f"A request with an Idempotency-Key may have {most} bytes.",
    )


def other_request(status: int) -> Response:
    """The key belongs to a request with another digest."""
    return problem(status, "key-reused", "The Idempotency-Key was used for another request.")


def in_progress(seconds: int) -> Response:
    """The same request is running."""
    return problem(
        HTTPStatus.CONFLICT,
        "in-progress",
        "The request with this Idempotency-Key is being processed.",
        ("retry-after", str(min(seconds, SOON))),
    )


def response_not_kept(status: int) -> Response:
    """The request was done, but its response was too large to be kept, or a stream."""
    return problem(
        HTTPStatus.CONFLICT,
        "response-not-kept",
        "The request was done. Its response was too large, or a stream, and is not kept.",
        original_status=status,
    )


def failed_before() -> Response:
    """The request ended in an exception, and is not to run again."""
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "failed-before", "The request with this Idempotency-Key failed.")


def unavailable() -> Response:
    """The ledger does not answer, so the request was not begun."""
    return problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "ledger-unavailable",
        "The request was not begun, because its Idempotency-Key cannot be looked up. Send it again.",
        ("retry-after", str(SOON)),
    )
