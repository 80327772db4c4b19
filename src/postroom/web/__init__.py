"""HTTP: the idempotency middleware and the receiver of webhooks, for any ASGI, WSGI or Django application."""

from postroom.web.asgi import IdempotencyMiddleware
from postroom.web.idempotency.keyed_request import KeyedRequest
from postroom.web.idempotency.keys import parse_key
from postroom.web.receiver import Receiver

__all__ = ["IdempotencyMiddleware", "KeyedRequest", "Receiver", "parse_key"]
