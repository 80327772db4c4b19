"""Whose key it is: the sender of a request, as its credentials tell."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

from postroom import encoding
from postroom.rules.credentials import cookies, credentials, is_made_anew, logins
from postroom.web.idempotency import problems
from postroom.web.idempotency.problems import RequestRefused

if TYPE_CHECKING:
    from postroom.web.requests import Request

_log = logging.getLogger("postroom.web")


def sender_of(request: Request) -> str:
    """A hash of every credential of the request; of its cookies, if it has no other. Raises `RequestRefused`."""
    found, sent = _credentials(request), cookies(request.headers)
    if any(name == "authorization" and is_made_anew(value) for name, value in found):
        _warn_of_signatures()
    if {name for name, _ in found} == {"authorization"}:
        return encoding.digest(request.header("authorization"))[:32]
    if not found and not sent:
        _warn_of_nobody()
        raise RequestRefused(problems.sender_unknown())
    if not found:
        _warn_of_cookies()
        found = [("cookie", one) for one in sent]
    return encoding.digest(*(part for pair in found for part in pair))[:32]


def login_cookies(request: Request) -> list[str]:
    """Cookies that may tell whose request it is, next to another credential."""
    return logins(cookies(request.headers)) if _credentials(request) else []


def _credentials(request: Request) -> list[tuple[str, str]]:
    told = [(f"server: {name}", value) for name, value in request.told_by_server]  # no client can send such a name
    return [*credentials(request.headers), *told]


@cache
def _warn_of_nobody() -> None:
    """Once in a process."""
    _log.warning(
        "a request with an Idempotency-Key was refused, because it has no credential that says whose it is: give the "
        "idempotency middleware a function `scope` that returns the client, or a constant if all clients may share "
        "their responses"
    )


@cache
def _warn_of_cookies() -> None:
    """Once in a process."""
    _log.warning(
        "a request with an Idempotency-Key has cookies, but no other credential that says whose it is: if one of them "
        "changes between two attempts, both will run, so give the idempotency middleware a function `scope`"
    )


@cache
def _warn_of_signatures() -> None:
    """Once in a process."""
    _log.warning(
        "a request with an Idempotency-Key has an Authorization header that is signed anew for each attempt: "
        "two attempts will both run, so give the idempotency middleware a function `scope`"
    )
