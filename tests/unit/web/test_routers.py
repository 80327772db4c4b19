"""A required key cannot be got round: whatever a framework calls the protected handler for, needs one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults

import django
import flask
import pytest
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.http import HttpResponse
from django.test import override_settings
from django.urls import include, path, re_path
from fastapi import APIRouter, FastAPI
from hypothesis import HealthCheck, example, given
from hypothesis import settings as search
from hypothesis import strategies as st
from litestar import Litestar, route
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Mount, Route
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from postroom.web import IdempotencyMiddleware
from postroom.web.flask import Idempotency
from postroom.web.wsgi import IdempotencyMiddleware as WSGIMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable

    Ask = Callable[[str, str, dict[str, str]], None]

OPTIONS: dict[str, Any] = {
    "database": "sqlite:///never-opened.db",
    "required": ["POST /payments", "PUT /orders/{id}/pay", "GET /api/look"],
}
METHODS = ["POST", "PUT", "GET", "HEAD"]
effects: list[str] = []
"""What was done without a key."""


async def pay(_request: Any) -> Response:
    effects.append("paid")
    return Response()


def starlette_routes() -> list[Any]:
    inner = [Route("/look", pay, methods=["GET"])]
    return [
        Route("/payments", pay, methods=["POST"]),
        Route("/orders/{id}/pay", pay, methods=["PUT"]),
        Mount("/api", routes=inner),
    ]


def starlette_wrapped() -> Any:
    return IdempotencyMiddleware(GZipMiddleware(Starlette(routes=starlette_routes())), **OPTIONS)


def starlette_inside() -> Any:
    app = Starlette(routes=starlette_routes())
    app.add_middleware(IdempotencyMiddleware, **OPTIONS)
    return app


def fastapi() -> Any:
    router = APIRouter(prefix="/orders")
    router.add_api_route("/{number:int}/pay", _paid, methods=["PUT"])
    app, api = FastAPI(), FastAPI()
    app.add_api_route("/payments", _paid, methods=["POST"])
    app.include_router(router)
    api.add_api_route("/look", _paid, methods=["GET"])
    app.mount("/api", api)
    app.add_middleware(IdempotencyMiddleware, **OPTIONS)
    return app


async def _paid() -> None:
    effects.append("paid")


def litestar() -> Any:
    handlers = [
        route("/payments", http_method=["POST"])(_litestar()),
        route("/orders/{number:int}/pay", http_method=["PUT"])(_litestar()),
        route("/api/look", http_method=["GET"])(_litestar()),
    ]
    return IdempotencyMiddleware(Litestar(handlers), **OPTIONS)


def _litestar() -> Any:
    async def handler() -> None:
        effects.append("paid")

    return handler


def by_asgi(app: Any, root: str = "") -> Ask:
    def ask(method: str, path: str, headers: dict[str, str]) -> None:
        scope = {
            "type": "http",
            "method": method,
            "path": root + path,
            "root_path": root,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }

        async def receive() -> Any:
            return {"type": "http.request"}

        async def send(_event: Any) -> None:
            pass

        with suppress(UnicodeEncodeError):  # of a framework's redirect
            asyncio.run(app(scope, receive, send))

    return ask


def flask_app() -> flask.Flask:
    app = flask.Flask("shop")
    app.add_url_rule("/payments", "payments", _sync, methods=["POST"], strict_slashes=False)
    app.add_url_rule("/orders/<int:number>/pay", "pay", _sync, methods=["PUT"])
    app.add_url_rule("/api/look", "look", _sync, methods=["GET"])
    return app


def _sync(**_: Any) -> str:
    effects.append("paid")
    return ""


def by_flask() -> Ask:
    app = flask_app()
    Idempotency(app, **OPTIONS)
    return by_wsgi(app)


def by_mounted_flask() -> Ask:
    """The framework is not known, and comes last of three."""
    app = flask_app()
    return by_wsgi(WSGIMiddleware(DispatcherMiddleware(app, {"/shop": app}), **OPTIONS))


def by_wsgi(app: Any) -> Ask:
    def ask(method: str, path: str, headers: dict[str, str]) -> None:
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path.encode().decode("latin-1")}
        environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        setup_testing_defaults(environ)
        answer = app(environ, lambda *_: None)
        list(answer)
        if hasattr(answer, "close"):
            answer.close()

    return ask


def _view(request: Any, **_: Any) -> HttpResponse:
    if request.method in {"POST", "PUT", "GET", "HEAD"}:
        effects.append("paid")
    return HttpResponse()


class urls:  # noqa: N801 - a module of URLs, as Django has it
    urlpatterns = (
        re_path(r"^/*payments[/\s]*$", _view),
        re_path(r"(?i)^orders/(?P<id>\d+)/pay/?$", _view),
        path("api/", include([path("look", _view)])),
    )


def by_django() -> Ask:
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    unused = {"ENGINE": "django.db.backends.sqlite3", "NAME": "never-opened.db"}
    connections.settings |= {"unused": connections.configure_settings({"default": unused})["default"]}
    options = {"using": "unused", "required": [one.partition(" ")[2] for one in OPTIONS["required"]]}
    with override_settings(
        ROOT_URLCONF=urls,
        MIDDLEWARE=["postroom.web.django.IdempotencyMiddleware"],
        POSTROOM_IDEMPOTENCY=options,
        ALLOWED_HOSTS=["*"],
    ):
        handler = WSGIHandler()
        return _with_urls(by_wsgi(handler))


def _with_urls(ask: Ask) -> Ask:
    def asked(method: str, path: str, headers: dict[str, str]) -> None:
        with override_settings(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"]):
            ask(method, path, headers)

    return asked


APPLICATIONS: dict[str, Callable[[], Ask]] = {
    "starlette": lambda: by_asgi(starlette_wrapped()),
    "starlette, inside": lambda: by_asgi(starlette_inside()),
    "starlette, mounted": lambda: by_asgi(starlette_inside(), "/pay"),
    "fastapi": lambda: by_asgi(fastapi()),
    "litestar": lambda: by_asgi(litestar()),
    "litestar, mounted": lambda: by_asgi(litestar(), "/pay"),
    "flask": by_flask,
    "flask, mounted": by_mounted_flask,
    "django": by_django,
}

pieces = st.sampled_from(
    [
        "/",
        "//",
        "/./",
        "/x/../",
        "\\",
        ";a=b",
        "\n",
        " ",
        "\r",
        "\x00",
        ".",
        "%0a",
        "%2f",
        "%2F",
        "%70",
        "é",
        "/pay",
        "7",
    ]
)


@st.composite
def spelled(draw: st.DrawFn) -> str:
    """A protected path, with something put in here and there, or its letters changed."""
    text = draw(st.sampled_from(["/payments", "/orders/7/pay", "/api/look"]))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from([0, len(text), draw(st.integers(0, len(text)))]))
        text = text[:place] + draw(pieces) + text[place:]
    if draw(st.booleans()):
        place = draw(st.integers(0, len(text) - 1))
        text = text[:place] + text[place].swapcase() + text[place + 1 :]
    return text


@pytest.mark.parametrize("application", APPLICATIONS)
def test_K_2_what_reaches_the_protected_handler_had_a_key(application: str) -> None:
    ask = APPLICATIONS[application]()

    @search(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(spelled(), st.sampled_from(METHODS), st.sampled_from([{}, {"x-http-method-override": "POST"}]))
    @example("/payments\n", "POST", {})
    @example("//payments", "POST", {})
    @example("/payments/", "POST", {})
    @example("/x/pay/payments", "POST", {})
    @example("/orders/7/pay\n", "PUT", {})
    @example("//orders/7/pay", "PUT", {})
    @example("/Orders/7/PAY", "PUT", {})
    @example("/api/look", "HEAD", {})
    @example("/api/look\n", "GET", {})
    @example("/api//look", "HEAD", {})
    def searched(path: str, method: str, headers: dict[str, str]) -> None:
        effects.clear()
        ask(method, path, headers)
        assert not effects, (method, path)

    searched()


@pytest.mark.parametrize("application", APPLICATIONS)
def test_what_is_not_protected_is_let_through(application: str) -> None:
    """Else the search would find nothing because nothing works."""
    ask = APPLICATIONS[application]()
    effects.clear()
    for method, where in (("POST", "/payments"), ("PUT", "/orders/7/pay"), ("GET", "/api/look")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("postroom.web.idempotency.policy.Policy.candidate", lambda *_: None)
            ask(method, where, {})
    assert effects == ["paid"] * 3
