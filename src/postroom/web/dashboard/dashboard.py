"""`Dashboard`: an ASGI application to run by itself or to mount, under any path."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import parse_qs, quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from postroom.admin import Admin
from postroom.errors import InvalidSetting, SchemaMissing
from postroom.settings import Settings, SettingsOverrides
from postroom.web.dashboard.access import LONGEST_NAME, Access, Sessions, usable_token
from postroom.web.dashboard.database import Database
from postroom.web.dashboard.failures import Failure, LoginFailed, failure_of
from postroom.web.dashboard.guards import came_from_outside, secured, why_cross_site
from postroom.web.dashboard.params import BadInput, Params
from postroom.web.dashboard.routes import ROUTES
from postroom.web.dashboard.templates import Templates
from postroom.web.dashboard.visit import THEME_COOKIE, THEMES, Visit, base_values
from postroom.web.http import read_body

if TYPE_CHECKING:
    from postroom.web.dashboard.access import Authorize
    from postroom.web.http import Receive, Scope, Send

LARGEST_FORM = 16 * 1024 * 1024
MOST_FIELDS = 5000
LONGEST_ADDRESS = 16_000
YEAR = 365 * 86_400
_METHODS = {"GET", "HEAD", "POST"}
_DOOR = ("/login", "/logout", "/theme")
_log = logging.getLogger("postroom.web.dashboard")


class Dashboard:
    """Pages to see messages, dead letters, sagas and transactions, and to act on them.

    ``database`` is a URL; it, and other settings, which may be given by name, default to the settings in force. It is
    closed to everyone who has neither the ``token`` nor the right that ``authorize`` gives: a function, sync or async,
    that takes Starlette's request and returns an `Access`, None for a stranger, or a response to give instead, such as
    a redirect to your login. ``read_only`` takes the right to change anything from everyone. ``session_hours`` is how
    long a login holds. The setting ``trace_link`` leads from a message to its trace: a URL with ``{trace_id}``.

    Raises `InvalidSetting` if there is neither a token nor ``authorize``, and what `Admin` raises for settings. The
    database is first asked when a page is.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        token: str | None = None,
        authorize: Authorize | None = None,
        read_only: bool = False,
        session_hours: float = 12,
        **settings: Unpack[SettingsOverrides],
    ) -> None:
        in_force = Settings.load(database=database, dashboard_token=token, **settings)
        if in_force.database is None:
            raise InvalidSetting("no database is given: pass its URL, or set POSTROOM_DATABASE")
        if in_force.dashboard_token is None and authorize is None:
            raise InvalidSetting(
                "the dashboard is open to nobody: give it a token or set POSTROOM_DASHBOARD_TOKEN, or give it a "
                "function `authorize` that asks your application's own login"
            )
        if not 0 < session_hours <= YEAR / 3600:
            raise InvalidSetting(f"session_hours = {session_hours!r} is not valid: give hours, up to a year")
        _check_trace_link(in_force.trace_link)
        self._sessions = None if authorize else Sessions(usable_token(in_force.dashboard_token or ""))
        self._authorize = authorize
        self._read_only = read_only
        self._session_seconds = session_hours * 3600
        self._trace_link = in_force.trace_link
        _check_database(database, settings)
        self._database = Database(database, **settings)
        self._templates = Templates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        match scope["type"]:
            case "http":
                request = Request(scope, receive)
                response = await self._answer(request, receive)
                await response(scope, receive, secured(send))
            case "lifespan":
                await self._lifespan(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1000})

    async def close(self) -> None:
        """Close the connections. Call it if the application runs without a lifespan of its own."""
        await asyncio.to_thread(self._database.close)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})

    async def _answer(self, request: Request, receive: Receive) -> Response:
        path = _path(request)
        if request.method not in _METHODS:
            return PlainTextResponse("use GET or POST", 405, {"allow": "GET, HEAD, POST"})
        if (elsewhere := _right_address(request, path)) is not None:
            return RedirectResponse(elsewhere, 307)
        path = f"/{path.strip('/')}"  # Litestar adds a slash that was not asked for
        if path.startswith("/static/"):
            return self._static(path.removeprefix("/static/"))
        try:
            return await self._checked(request, path, receive)
        except Exception as error:  # noqa: BLE001 - a page is all that may fail
            failure = _told(error, path)
            return self._problem(request, path, failure.status, failure.title, failure.text)

    async def _checked(self, request: Request, path: str, receive: Receive) -> Response:
        """The answer to whoever may have one."""
        if request.method == "POST" and (why := why_cross_site(request)):
            return self._problem(request, path, 403, "This came from another site", f"{why}: open the page again.")
        form = await _form(receive) if request.method == "POST" else {}
        if path in _DOOR:
            return self._at_the_door(request, path, form)
        access = await self._access(request)
        if access is None:
            return self._stranger(request, path)
        if isinstance(access, Response):
            return access
        has_login = self._sessions is not None
        visit = Visit(request, path, access, self._database, self._templates, self._trace_link, has_login, form)
        return await self._visit(visit)

    async def _visit(self, visit: Visit) -> Response:
        method = "GET" if visit.request.method == "HEAD" else visit.request.method
        handlers = ROUTES.get(visit.path)
        if handlers is None:
            return self._problem(visit.request, visit.path, 404, "There is no such page", "Check the address.")
        handler = handlers.get(method)
        if handler is None:
            response = self._problem(visit.request, visit.path, 405, "Not like this", f"Use {', '.join(handlers)}.")
            response.headers["allow"] = ", ".join(handlers)
            return response
        try:
            return await handler(visit)
        except Exception as error:  # noqa: BLE001 - a page is all that may fail
            return visit.problem(_told(error, visit.path))

    async def _access(self, request: Request) -> Access | Response | None:
        if self._sessions:
            name = self._sessions.name_in(request.cookies.get(self._sessions.cookie_name, ""), time.time())
            access: Access | Response | None = None if name is None else Access(name, actions=True, payloads=True)
        else:
            access = await self._authorized(request)
        return access.reading() if isinstance(access, Access) and self._read_only else access

    async def _authorized(self, request: Request) -> Access | Response | None:
        """What the application's own login says. Raises `LoginFailed`: nobody comes in through a mistake in it."""
        try:
            return await self._asked_login(request)
        except HTTPException as refused:  # as functions for FastAPI raise it
            return PlainTextResponse(refused.detail, refused.status_code, refused.headers)
        except Exception as error:
            raise LoginFailed from error

    async def _asked_login(self, request: Request) -> Access | Response | None:
        assert self._authorize is not None  # noqa: S101 - the constructor sees to it
        if inspect.iscoroutinefunction(self._authorize):
            found = await self._authorize(request)
        else:
            found = await asyncio.to_thread(self._authorize, request)
            if inspect.isawaitable(found):
                found = await found
        if found is not None and not isinstance(found, Access | Response):
            raise TypeError(f"authorize returned a {type(found).__name__}: return an Access, a Response, or None")
        return found

    def _stranger(self, request: Request, path: str) -> Response:
        if self._sessions is None:
            return self._problem(request, path, 403, "You may not see this", "Your login does not give the right to.")
        if came_from_outside(request):
            # The browser kept the cookie back, since a link on another site led here. From here it sends it.
            return self._page(request, path, "again", 200)
        if request.headers.get("hx-request"):
            return PlainTextResponse("log in again", 401, {"hx-refresh": "true"})
        return self._page(request, path, "login", 401, wrong=False)

    def _at_the_door(self, request: Request, path: str, form: dict[str, list[str]]) -> Response:
        given = Params({name: values[-1] for name, values in form.items()})
        if request.method != "POST":
            return RedirectResponse("./", 303)
        if path == "/theme":
            back = RedirectResponse(_safe_return(given.text("back", LONGEST_ADDRESS)), 303)
            back.set_cookie(
                THEME_COOKIE, given.one_of("theme", *THEMES), YEAR, path=None, samesite="strict", httponly=True
            )
            return back
        if path == "/logout" or self._sessions is None:
            gone = RedirectResponse("./", 303)
            if self._sessions:
                gone.set_cookie(self._sessions.cookie_name, "", 0, path=None, httponly=True, samesite="strict")
            return gone
        if not self._sessions.is_token(form.get("token", [""])[-1]):
            _log.warning("somebody tried to log in to the dashboard with a wrong token")
            return self._page(request, path, "login", 401, wrong=True)
        name = given.text("name", LONGEST_NAME) or "dashboard"
        # Relative, and the cookie without a path, which then is the directory that the browser sees: both are right
        # behind any prefix, and behind proxies that take it away.
        entered = RedirectResponse("./", 303)
        entered.set_cookie(
            self._sessions.cookie_name,
            self._sessions.cookie(name, time.time() + self._session_seconds),
            int(self._session_seconds),
            path=None,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return entered

    def _static(self, name: str) -> Response:
        file = self._templates.files.get(name)
        if file is None:
            return PlainTextResponse("there is no such file", 404)
        return Response(file.content, 200, {"cache-control": "public, max-age=31536000, immutable"}, file.type)

    def _problem(self, request: Request, path: str, status: int, title: str, text: str) -> Response:
        return self._page(request, path, "problem", status, title=title, text=text)

    def _page(self, request: Request, path: str, template: str, status: int, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._templates.render(template, **base_values(request, path), **values), status)


def _told(error: Exception, path: str) -> Failure:
    """What to say of an error; what cannot be said is logged."""
    failure = failure_of(error)
    if not failure.explained:
        _log.error("the dashboard's page %r failed", path, exc_info=error)
    return failure


def _path(request: Request) -> str:
    """The path inside the mount."""
    path, prefix = request.scope["path"], request.scope.get("root_path", "").rstrip("/")
    return str(path[len(prefix) :]) if prefix and (path == prefix or path.startswith(f"{prefix}/")) else str(path)


def _right_address(request: Request, path: str) -> str | None:
    """Where to go instead: the addresses on a page are right only if its own ends as it should. None if it does."""
    asked = request.scope.get("raw_path") or request.scope["path"].encode()
    asked = asked.partition(b"?")[0]
    if not path.strip("/"):
        return None if asked.endswith(b"/") else f"{quote(asked.rpartition(b'/')[2])}/"
    query = request.scope["query_string"].decode("latin-1")
    if asked.endswith(b"/") and path.endswith("/"):
        return f"../{quote(path.strip('/').rpartition('/')[2])}{'?' if query else ''}{query}"
    return None


async def _form(receive: Receive) -> dict[str, list[str]]:
    body = await read_body(receive, LARGEST_FORM)
    if body is None or body.more or len(body.content) > LARGEST_FORM:
        raise BadInput(f"the form has more than {LARGEST_FORM:,} bytes")
    try:
        return parse_qs(body.content.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise BadInput(f"the form cannot be read, or has more than {MOST_FIELDS:,} fields") from None


def _safe_return(back: str | None) -> str:
    """A page of ours, relative to the theme's form, which is beside it."""
    if back is None or ":" in back.partition("?")[0] or back.startswith(("/", "\\", "//")):
        return "./"
    return back


def _check_database(database: str | None, settings: SettingsOverrides) -> None:
    """Raise what is wrong with the settings. The database itself may be away, and its tables may not be there yet."""
    with suppress(SchemaMissing):
        Admin(database, **settings).close()


def _check_trace_link(link: str | None) -> None:
    if link is not None and ("{trace_id}" not in link or not link.startswith(("https://", "http://"))):
        raise InvalidSetting(
            f"trace_link = {link!r} is not valid: give a URL with {{trace_id}} in it, such as "
            "https://jaeger.example/trace/{trace_id}"
        )
