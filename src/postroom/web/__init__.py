"""HTTP: the idempotency middleware, the receiver of webhooks, and the dashboard.

Middleware and receiver are for any ASGI, WSGI or Django application. The dashboard needs the extra ``[dashboard]``; it
is loaded when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from postroom.web.asgi import IdempotencyMiddleware
from postroom.web.idempotency.keyed_request import KeyedRequest
from postroom.web.idempotency.keys import parse_key
from postroom.web.receiver import Receiver

if TYPE_CHECKING:
    from postroom.web.dashboard import Access, Dashboard

__all__ = ["Access", "Dashboard", "IdempotencyMiddleware", "KeyedRequest", "Receiver", "parse_key"]

_LATE = ("Access", "Dashboard")


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from postroom.web import dashboard
    except ModuleNotFoundError as error:
        if error.name not in {"starlette", "jinja2", "markupsafe"}:
            raise
        from postroom.errors import DriverMissing

        raise DriverMissing(f"the dashboard needs {error.name}: pip install 'postroom[dashboard]'") from None
    return getattr(dashboard, name)
