"""What speaks HTTP: applications and middleware, for any server and framework that takes them."""

from postroom.web.asgi import IdempotencyMiddleware
from postroom.web.idempotency.keyed_request import KeyedRequest
from postroom.web.idempotency.keys import parse_key
from postroom.web.receiver import Receiver

__all__ = ["IdempotencyMiddleware", "KeyedRequest", "Receiver", "parse_key"]
