"""The adapter: the relay calls it to send an order to the exchange (``python:examples.orders.adapter:send``)."""

from __future__ import annotations

import os
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from postroom import Message

EXCHANGE = "ORDERS_EXCHANGE"
"""The environment variable with the exchange's URL."""
LONGEST = 60.0
"""Seconds; the relay's own ``BROKER_TIMEOUT_MS`` is shorter, and cancels the call."""


async def send(message: Message) -> dict[str, Any]:
    """Place the order at the exchange, with the same idempotency key at every attempt.

    Whether an attempt counts depends on whether the exchange may have received the order. If it cannot have
    (`ConnectionError`), no attempt counts, and the relay waits until the exchange is back. Everything else counts: no
    answer, a broken connection, an invalid answer. Retrying is safe because the exchange knows the key.
    """
    try:
        answer = await client().post(
            "/orders",
            content=message.payload,
            headers={"content-type": message.content_type, "idempotency-key": message.idempotency_key or ""},
        )
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise ConnectionError(f"the exchange cannot be reached: {error}") from error
    except httpx.TimeoutException as error:
        raise TimeoutError("the exchange does not answer") from error
    except httpx.TransportError as error:
        return {"status": "unknown", "reason_code": "CONNECTION", "message": f"no answer came: {error}"}
    match answer.status_code:
        case HTTPStatus.OK:
            return {**answer.json(), "status": "ok"}
        case HTTPStatus.UNPROCESSABLE_ENTITY:  # no retry can help: the order is dead at once
            return {"status": "refused", "reason_code": "INVALID_TARGET", "message": answer.text}
        case other:
            return {"status": "failed", "reason_code": f"HTTP_{other}", "message": answer.text}


@cache
def client() -> httpx.AsyncClient:
    """One client for all calls of the relay's process: it keeps connections open."""
    return httpx.AsyncClient(base_url=os.environ[EXCHANGE], timeout=LONGEST)
