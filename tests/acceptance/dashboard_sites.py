"""Applications that a dashboard is mounted in, served on a free port."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.web import Dashboard

PREFIX = "/ops/postroom"
START_SECONDS = 20


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an ASGI application with uvicorn; gives its address."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1, ws="none")
    )
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
    thread.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextmanager
def served_by_wsgi(app: Any) -> Iterator[str]:
    """Serve a WSGI application, a thread for each request; gives its address."""
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def in_fastapi(dashboard: Dashboard) -> Any:
    """Mounted as the guide says."""
    from fastapi import FastAPI

    app = FastAPI()
    app.mount(PREFIX, dashboard)
    return app


def in_flask(dashboard: Dashboard) -> Any:
    """Mounted as the guide says."""
    from a2wsgi import ASGIMiddleware
    from flask import Flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    app = Flask("shop")
    pages: Any = ASGIMiddleware(cast("Any", dashboard))  # which has types of its own
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {PREFIX: pages})  # type: ignore[method-assign]  # as Flask's documents have it
    return app


def in_django(dashboard: Dashboard) -> Any:
    """Mounted as the guide says, in wsgi.py."""
    import django
    from a2wsgi import ASGIMiddleware
    from django.conf import settings
    from django.core.handlers.wsgi import WSGIHandler

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="of a test", ROOT_URLCONF=__name__, USE_TZ=True)  # noqa: S106 - a test's
        django.setup()
    pages, rest = ASGIMiddleware(cast("Any", dashboard)), WSGIHandler()

    def application(environ: Any, start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        if path == PREFIX or path.startswith(f"{PREFIX}/"):
            environ["SCRIPT_NAME"] += PREFIX
            environ["PATH_INFO"] = path.removeprefix(PREFIX)
            return pages(environ, start_response)
        return rest(environ, start_response)

    return application


urlpatterns: list[Any] = []
