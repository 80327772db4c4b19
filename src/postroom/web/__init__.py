"""What speaks HTTP: applications and middleware, for any server and framework that takes them."""

from postroom.web.asgi import IdempotencyMiddleware
from postroom.web.joining import KeyedRequest
from postroom.web.keys import parse_key
from postroom.web.receiver import Receiver

__all__ = ["IdempotencyMiddleware", "KeyedRequest", "Receiver", "parse_key"]
