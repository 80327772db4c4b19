"""One request of one person: who it is, what was asked, and the page that answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from starlette.responses import HTMLResponse, RedirectResponse

from postroom.rules.bounded import BoundedCount
from postroom.web.dashboard.params import Params

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from postroom.admin import Overview
    from postroom.web.dashboard.access import Access
    from postroom.web.dashboard.database import Database
    from postroom.web.dashboard.failures import Failure
    from postroom.web.dashboard.templates import Templates

CACHED = 1.5
"""Seconds for which all tabs share the overview."""
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "postroom_theme"


class Denied(Exception):
    """The person may not do this."""


@dataclass
class Visit:
    """What handlers of pages get."""

    request: Request
    path: str
    access: Access
    database: Database
    templates: Templates
    trace_link: str | None
    has_login: bool
    """The person came in with the token, and may log out."""
    form: Mapping[str, list[str]] = field(default_factory=dict)
    """The fields of a POST."""

    @cached_property
    def params(self) -> Params:
        """The fields of the form, or the query's parameters."""
        if self.request.method == "POST":
            return Params({name: values[-1] for name, values in self.form.items()})
        return Params(dict(self.request.query_params))

    @property
    def now(self) -> datetime:
        """The time here. What is compared in the database uses the database's."""
        return datetime.now(UTC)

    @property
    def refreshes(self) -> bool:
        """The page keeps itself up to date: nobody has asked for it again."""
        return self.request.headers.get("hx-request") == "true"

    @property
    def is_wsgi(self) -> bool:
        """Under WSGI, where an open stream would take a thread."""
        return "wsgi_environ" in self.request.scope

    def need_actions(self) -> None:
        """Raises `Denied` if the person may only look."""
        if not self.access.actions:
            raise Denied(f"{self.access.name} may look, but not change anything")

    def need_payloads(self) -> None:
        """Raises `Denied` if the person may not see payloads."""
        if not self.access.payloads:
            raise Denied(f"{self.access.name} may not see payloads and values of headers")

    async def page(self, template: str, *, status: int = 200, live: bool = True, **values: Any) -> HTMLResponse:
        """A page with everything around it. `live`: it keeps itself up to date."""
        overview = await self.database.shared("overview", CACHED, lambda admin: admin.overview())
        values = {**self.frame(live=live), **told_everywhere(overview), **values}
        return HTMLResponse(self.templates.render(template, **values), status)

    def frame(self, *, live: bool = False) -> dict[str, Any]:
        """What the layout needs."""
        return {
            **base_values(self.request, self.path),
            "access": self.access,
            "live": live and self.request.method == "GET",
            "polls": self.is_wsgi,
            "self_url": _self_url(self.path, self.request),
            "back": _self_url(self.path, self.request) if self.request.method == "GET" else "./",
            "has_login": self.has_login,
        }

    def problem(self, failure: Failure) -> HTMLResponse:
        """What went wrong, with the way to everything else beside it."""
        values = {**self.frame(), "overview": None, "parked": None, "failure": failure}
        return HTMLResponse(self.templates.render("failed", **values), failure.status)

    def redirect(self, to: str) -> RedirectResponse:
        """Go on elsewhere, relative to where this is."""
        return RedirectResponse(to, 303)


def base_values(request: Request, path: str) -> dict[str, Any]:
    """What every page needs, that of a stranger included."""
    theme = request.cookies.get(THEME_COOKIE, "auto")
    return {
        "base": "../" * (path.count("/") - 1),
        "path": path,
        "theme": theme if theme in THEMES else "auto",
        "access": None,
        "live": False,
        "polls": False,
        "overview": None,
        "parked": None,
    }


def told_everywhere(overview: Overview) -> dict[str, Any]:
    """What the navigation tells of the whole."""
    parked = BoundedCount.sum(saga.parked for saga in overview.sagas)
    return {"overview": overview, "parked": parked}


def _self_url(path: str, request: Request) -> str:
    """The page's own address, relative to itself."""
    query = request.scope["query_string"].decode("latin-1")
    return (path.rpartition("/")[2] or "./") + (f"?{query}" if query else "")
