"""The idempotency middleware for Flask: ``Idempotency(app, database="postgresql://…")``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from flask import got_request_exception, request
from werkzeug.exceptions import HTTPException

from postroom.web.idempotency.keyed_request import ENVIRON_KEY
from postroom.web.wsgi import IdempotencyMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

    from postroom.web.idempotency.options import OptionArguments


class Idempotency(IdempotencyMiddleware):
    """Runs a request with an `Idempotency-Key` once; a client that asks again gets the same response.

    It takes the place of ``app.wsgi_app``. It knows the routes, and which responses Flask has made of an exception.
    Raises `InvalidSetting` or `UnsupportedDatabase`.
    """

    def __init__(self, app: Flask, **options: Unpack[OptionArguments]) -> None:
        super().__init__(app.wsgi_app, **options)
        self._flask = app
        app.wsgi_app = self  # type: ignore[method-assign]  # as Flask's own documents have it
        got_request_exception.connect(_mark, app)
        handle = _marking(app.handle_user_exception)
        app.handle_user_exception = handle  # type: ignore[method-assign,assignment]  # there is no signal for these

    def find_route(self, environ: dict[str, Any]) -> str:
        """The rule that Flask will choose."""
        try:
            rule, _ = self._flask.url_map.bind_to_environ(environ).match(return_rule=True)
        except HTTPException:
            return ""
        return rule.rule


def _marking(handle: Callable[[Exception], Any]) -> Callable[[Exception], Any]:
    """Flask calls it for each exception of a view, even if the application has an error handler for it.

    An HTTP exception is an intended answer, as by ``abort(503)``.
    """

    def handle_user_exception(error: Exception) -> Any:
        if not isinstance(error, HTTPException):
            _mark()
        return handle(error)

    return handle_user_exception


def _mark(_app: Flask | None = None, **_: Any) -> None:
    if ENVIRON_KEY in request.environ:
        request.environ[ENVIRON_KEY].failed = True
