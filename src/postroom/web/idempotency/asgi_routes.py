"""The route that a framework will choose for an ASGI request, before it has."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST_WRAPPERS = 50


def route_of(scope: Mapping[str, Any], app: object) -> str:
    """The template of the path, as ``/orders/{id}``: Litestar's router tells, and Starlette's and FastAPI's routes.

    Empty where neither the scope nor the application that comes next knows one, nor what that one wraps.
    """
    known = scope.get("path_template")
    if isinstance(known, str):  # Litestar has chosen already
        return known
    with suppress(Exception):  # there is no such route, or the framework is of another version
        for one in (scope.get("app"), *_within(app)):
            if hasattr(one, "asgi_router"):
                return _by_litestar(one.asgi_router, scope)
            if getattr(one, "routes", None):
                return _matching(one.routes, scope)
    return ""


def paths_of(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """The path without the place where the application is mounted, as each of the frameworks reads it.

    Servers differ in whether the path contains that place, and frameworks in how they find out.
    """
    path, root = str(scope["path"]), str(scope.get("root_path") or "")
    if not root or root not in path:
        return (path or "/",)
    after = path.removeprefix(root)
    found = (after if after.startswith("/") else path, path, path.split(root, maxsplit=1)[-1])
    return ("/",) if path == root else tuple(dict.fromkeys(one or "/" for one in found))


def _within(app: object) -> Iterator[Any]:
    """The application, and what it wraps, as middleware does."""
    for _ in range(_MOST_WRAPPERS):
        yield app
        app = getattr(app, "app", None)


def _by_litestar(router: Any, scope: Mapping[str, Any]) -> str:
    path = "/".join(part for part in paths_of(scope)[-1].split("/") if part)
    *_, template = router.handle_routing(path=f"/{path}", method=scope["method"])
    return template if isinstance(template, str) else ""


def _matching(routes: Any, scope: Mapping[str, Any]) -> str:
    for route in routes:
        match, child = route.matches(scope) if hasattr(route, "matches") else (None, {})
        if getattr(match, "name", "") == "FULL":
            inner = getattr(route, "routes", None)
            path = str(getattr(route, "path", ""))
            return path + _matching(inner, {**scope, **child}) if inner else path
    return ""
