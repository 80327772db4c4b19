"""Which requests need an idempotency key, and which may have one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from http import HTTPMethod
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs

from postroom.errors import InvalidSetting
from postroom.rules.url_paths import path_spellings, without_trailing_slash

if TYPE_CHECKING:
    from postroom.web.requests import Request

Patterns = Sequence[str] | Callable[["Request"], bool]
"""Patterns, or a function of the request.

A pattern is a method (``POST``), a path (``/orders/{id}``) or both (``POST /orders/{id}``). ``{id}`` stands for one
segment of a path, a ``*`` at its end for any rest. Nobody must get round a required key, so a pattern matches every
spelling that a framework may route to the same handler, in capital letters too, and the route that the framework will
choose. ``GET`` matches ``HEAD``, which frameworks answer alike. A method that a header or the query puts in the place
of the request's own counts, too.
"""

METHODS = frozenset(HTTPMethod) | {"QUERY", "PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK"}
_PATTERN = re.compile(r"(?:([A-Z]+)(?: +|$))?(/\S*)?")
_PART = re.compile(r"\{\w*\}|\*$")
_OVERRIDES = ("x-http-method-override", "x-http-method", "x-method-override")
_MISTAKEN = re.compile(r"[{}<>*?#]")
"""Characters that mean something in other kinds of patterns, and would only match themselves here."""


class Need(Enum):
    """What the middleware does about a request's key."""

    NONE = "ignored"
    OPTIONAL = "used"
    REQUIRED = "required"


class Route(NamedTuple):
    """What the patterns say about a request."""

    need: Need
    operation: str = ""
    """The pattern's method and path; empty if it does not name a whole path."""


class Routes:
    """Matches requests with patterns. Raises `InvalidSetting` for an invalid pattern."""

    def __init__(self, required: Patterns, optional: Patterns) -> None:
        self._matchers = [(Need.REQUIRED, _matcher(required)), (Need.OPTIONAL, _matcher(optional))]

    def route(self, request: Request) -> Route:
        """The first pattern that matches the request, required ones first."""
        for need, match in self._matchers:
            operation = match(request)
            if operation is not None:
                return Route(need, operation)
        return Route(Need.NONE)


Matcher = Callable[["Request"], str | None]


def _matcher(patterns: Patterns) -> Matcher:
    if callable(patterns):
        return lambda request: "" if patterns(request) else None
    matchers = [_pattern(pattern) for pattern in patterns]

    def match(request: Request) -> str | None:
        found = (one(request) for one in matchers)
        return next((operation for operation in found if operation is not None), None)

    return match


def _pattern(text: str) -> Matcher:
    parts = _PATTERN.fullmatch(text)
    if not text or parts is None:
        raise InvalidSetting(f"{text!r} is not a pattern: write POST, /orders/{{id}} or POST /orders/{{id}}")
    method, path = parts[1], parts[2] and without_trailing_slash(parts[2])
    if method is not None and method not in METHODS:
        raise InvalidSetting(f"{text!r} is not a pattern: {method} is not an HTTP method; for others use a function")
    expression = None if path is None else re.compile(_expression(text, path), re.DOTALL | re.IGNORECASE)
    is_template = path is not None and not path.endswith("*")

    def match(request: Request) -> str | None:
        if method is not None and method not in methods_of(request):
            return None
        if expression is not None and not any(map(expression.fullmatch, _paths_of(request))):
            return None
        return f"{request.method} {path}" if is_template else ""

    return match


def methods_of(request: Request) -> set[str]:
    """The request's method, and others whose handler a framework may call for it."""
    replaced = {value.strip().upper() for name in _OVERRIDES for value in request.values(name)}
    in_query = {value.upper() for value in parse_qs(request.query).get("_method", [])} if request.query else set()
    return {request.method, *replaced, *in_query, *({"GET"} if request.method == "HEAD" else ())}


def _paths_of(request: Request) -> Iterator[str]:
    """The spellings of its path; last, because it costs most, the framework's route."""
    yield from chain.from_iterable(map(path_spellings, (request.path, *request.other_paths)))
    route = request.find_route()
    if route:
        yield without_trailing_slash("/" + re.sub(r"[\^$]|\\Z|\\A", "", route).lstrip("/"))


def _expression(text: str, path: str) -> str:
    parts, end = [], 0
    for found in _PART.finditer(path):
        parts += [_literal(text, path[end : found.start()]), ".*" if found[0] == "*" else "[^/]+"]
        end = found.end()
    return "".join([*parts, _literal(text, path[end:])])


def _literal(text: str, part: str) -> str:
    if found := _MISTAKEN.search(part):
        raise InvalidSetting(
            f"{text!r} is not a pattern, because of {found[0]!r}: write {{id}} for one segment of the path, and * only "
            "at its end"
        )
    return re.escape(part)
