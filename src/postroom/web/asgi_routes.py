"""The route that a framework will choose for an ASGI request, before it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def route_of(scope: Mapping[str, Any]) -> str:
    """The template of the path, as ``/orders/{id}``: Litestar has it there, Starlette's and FastAPI's routes tell.

    Empty where it cannot be known.
    """
    known = scope.get("path_template")
    if isinstance(known, str):
        return known
    return _matching(getattr(scope.get("app"), "routes", None) or (), scope)


def _matching(routes: Any, scope: Mapping[str, Any]) -> str:
    for route in routes:
        match, child = route.matches(scope) if hasattr(route, "matches") else (None, {})
        if getattr(match, "name", "") == "FULL":
            inner = getattr(route, "routes", None)
            path = str(getattr(route, "path", ""))
            return path + _matching(inner, {**scope, **child}) if inner else path
    return ""
