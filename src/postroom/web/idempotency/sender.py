"""Whose key it is: the sender of a request, as its credentials tell."""

from __future__ import annotations

import logging
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from postroom import encoding
from postroom.rules.credentials import cookies, credentials, is_made_anew, logins
from postroom.web.idempotency import problems
from postroom.web.idempotency.problems import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.web.requests import Request

_log = logging.getLogger("postroom.web")


class Sender(NamedTuple):
    """Who has sent a request, as far as its credentials tell."""

    scope: str
    """A hash of every credential of the request; of its cookies, if it has no other."""
    logins: list[str]
    """Cookies that may tell whose request it is, next to another credential."""


def sender_of(request: Request) -> Sender:
    """The sender of a request. Raises `RequestRefused` if nothing tells."""
    told = [(f"server: {name}", value) for name, value in request.told_by_server]  # no client can send such a name
    found, sent = [*credentials(request.headers), *told], cookies(request.headers)
    if any(name == "authorization" and is_made_anew(value) for name, value in found):
        _warn_of_signatures()
    if {name for name, _ in found} == {"authorization"}:
        return Sender(encoding.digest(request.header("authorization"))[:32], logins(sent))
    if found:
        return Sender(_hash(found), logins(sent))
    if not sent:
        _warn_of_nobody()
        raise RequestRefused(problems.sender_unknown())
    _warn_of_cookies()
    return Sender(_hash(("cookie", one) for one in sent), [])


def _hash(found: Iterable[tuple[str, str]]) -> str:
    return encoding.digest(*chain.from_iterable(found))[:32]


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
