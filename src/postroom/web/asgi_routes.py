"""The route that a framework will choose for an ASGI request, before it has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from postroom.web.routes import plain

if TYPE_CHECKING:
    from collections.abc import Mapping


def route_of(scope: Mapping[str, Any], app: object) -> str:
    """The template of the path, as ``/orders/{id}``: Litestar's router tells, and Starlette's and FastAPI's routes.

    Empty where neither the scope nor the application that comes next knows one.
    """
    known = scope.get("path_template")
    if isinstance(known, str):  # Litestar has chosen already
        return known
    router = getattr(app, "asgi_router", None)
    if router is not None:
        return _by_litestar(router, scope)
    routes = getattr(scope.get("app"), "routes", None) or getattr(app, "routes", None)
    return _matching(routes or (), scope)


def _by_litestar(router: Any, scope: Mapping[str, Any]) -> str:
    path = re.sub("/+", "/", scope["path"].removeprefix(scope.get("root_path", "")))
    try:
        *_, template = router.handle_routing(path=plain(path), method=scope["method"])
    except Exception:  # noqa: BLE001 - there is no such route, or the router is of another version
        return ""
    return template if isinstance(template, str) else ""


def _matching(routes: Any, scope: Mapping[str, Any]) -> str:
    for route in routes:
        match, child = route.matches(scope) if hasattr(route, "matches") else (None, {})
        if getattr(match, "name", "") == "FULL":
            inner = getattr(route, "routes", None)
            path = str(getattr(route, "path", ""))
            return path + _matching(inner, {**scope, **child}) if inner else path
    return ""
