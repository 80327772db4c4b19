"""What the idempotency middleware makes of a request before it runs: has it a key, whose, and for what."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

from postroom import encoding
from postroom.errors import InvalidEntry
from postroom.idempotency import MOST_CHARACTERS, digest_of, entry_of, scope_of
from postroom.rules.credentials import cookies, credentials, is_made_anew, logins
from postroom.rules.url_paths import without_trailing_slash
from postroom.web.idempotency import problems
from postroom.web.idempotency import recorded_responses as responses
from postroom.web.idempotency.forms import without_boundary
from postroom.web.idempotency.keys import InvalidKey, key_in_body, key_in_header, may_hold_key
from postroom.web.idempotency.option_checks import as_text
from postroom.web.idempotency.routes import Need, Route, Routes

if TYPE_CHECKING:
    from postroom.rules.replay import Entry, Response
    from postroom.web.idempotency.options import Options
    from postroom.web.requests import Request


_log = logging.getLogger("postroom.web")


class Refused(Exception):
    """The request is not to run. It was answered by us."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"refused with {response.status}")
        self.response = response


class Policy:
    """The options as decisions. Nothing here waits or writes."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._routes = Routes(options.required, options.optional)
        self._kept = None if options.kept_headers is None else {name.lower() for name in options.kept_headers}
        self.max_body_bytes = options.max_body_bytes
        self.max_response_bytes = options.max_response_bytes
        self.wait_seconds = options.wait_seconds
        self.conflict_status = options.conflict_status

    def look_at(self, request: Request) -> Asked | None:
        """The request if its body is to be read for its key or its digest; None if it has nothing to do with us.

        Raises `Refused`.
        """
        route = self._routes.route(request)
        if route.need is Need.NONE:
            return None
        key = self._key_in_header(request)
        if key is None and (self._options.body_field is None or not may_hold_key(request)):
            self._refuse_without_key(route)
            return None
        asked = Asked(request, route, key)
        if (request.announced_bytes or 0) > self.max_body_bytes:
            self.refuse_large(asked)
            return None
        return asked

    def refuse_large(self, asked: Asked) -> None:
        """Raise `Refused` for a request with too large a body, unless it may run as one without a key.

        One that needs a key may not, as long as none was seen: it could be in the body, or nowhere.
        """
        if asked.route.need is Need.OPTIONAL if asked.key is None else self._options.pass_large_requests:
            return
        raise Refused(problems.request_too_large(self.max_body_bytes))

    def entry(self, asked: Asked, body: bytes) -> Entry | None:
        """The entry of a run of this request; None if it has no key and need not have one. Raises `Refused`."""
        request, key = asked.request, asked.key
        try:
            if key is None and self._options.body_field is not None:
                key = key_in_body(request, body, self._options.body_field)
            if key is None:
                self._refuse_without_key(asked.route)
                return None
            content = without_boundary(request.header("content-type") or "", body)
            digest = digest_of(request.method, request.target, request.query, content)
            return entry_of(self._scope(asked), key, self._with_login(request, digest))
        except InvalidEntry as error:
            raise Refused(problems.invalid_key(_without_value(error))) from None

    def is_recorded(self, status: int) -> bool:
        """Whether a response is one that ends its request."""
        return status not in self._options.unrecorded

    def record(self, response: Response) -> Response:
        """What is kept of one that is whole: not its body, where that is larger than may be kept."""
        return (self.not_kept if len(response.body) > self.max_response_bytes else self.kept)(response)

    def kept(self, response: Response) -> Response:
        """What is kept of a response that can be given again."""
        return responses.kept(response, self._kept)

    def not_kept(self, response: Response) -> Response:
        """What is kept of one that cannot."""
        return responses.not_kept(response, self._kept)

    def _key_in_header(self, request: Request) -> str | None:
        try:
            return key_in_header(request)
        except InvalidKey as error:
            raise Refused(problems.invalid_key(str(error))) from None

    def _refuse_without_key(self, route: Route) -> None:
        if route.need is Need.REQUIRED:
            raise Refused(problems.missing_key())

    def _scope(self, asked: Asked) -> str:
        """Tenant and operation; a hash of them where they are longer than a scope or hold what cannot be seen."""
        request = asked.request
        given = self._options.scope
        tenant = _sender(request) if given is None else as_text("scope", given(request))
        scope = scope_of(tenant, self._operation(asked))
        if len(scope) <= MOST_CHARACTERS and scope.isprintable() and scope == scope.strip():
            return scope
        return f"sha256:{encoding.digest(scope.encode(errors='surrogatepass'))}"

    def _with_login(self, request: Request, digest: str) -> str:
        """The digest of the request together with a cookie that may tell whose it is, beside another credential.

        It is no part of the scope: such cookies are renewed, and with a new one the request would run again. So it is
        refused instead, as another one's, unless the application names the scope.
        """
        found = logins(cookies(request.headers)) if self._options.scope is None and _credentials(request) else []
        return encoding.digest(digest, *found) if found else digest

    def _operation(self, asked: Asked) -> str:
        request = asked.request
        if self._options.operation is not None:
            return as_text("operation", self._options.operation(request))
        return (
            asked.route.operation or f"{request.method} {without_trailing_slash(request.find_route() or request.path)}"
        )


class Asked:
    """A request that may have a key."""

    __slots__ = ("key", "request", "route")

    def __init__(self, request: Request, route: Route, key: str | None) -> None:
        self.request = request
        self.route = route
        self.key = key


def _sender(request: Request) -> str:
    """A hash of every credential that the request carries; of its cookies, where it has no other.

    Raises `Refused` where it has none.
    """
    found, sent = _credentials(request), cookies(request.headers)
    if any(name == "authorization" and is_made_anew(value) for name, value in found):
        _warn_of_signatures()
    if {name for name, _ in found} == {"authorization"}:
        return encoding.digest(request.header("authorization"))[:32]
    if not found and not sent:
        _warn_of_nobody()
        raise Refused(problems.sender_unknown())
    if not found:
        _warn_of_cookies()
        found = [("cookie", one) for one in sent]
    return encoding.digest(*(part for pair in found for part in pair))[:32]


def _credentials(request: Request) -> list[tuple[str, str]]:
    told = [(f"server: {name}", value) for name, value in request.told_by_server]  # which no client can send
    return [*credentials(request.headers), *told]


@cache
def _warn_of_nobody() -> None:
    """Once in a process."""
    _log.warning(
        "a request with an Idempotency-Key was refused, since it has no credential that tells whose it is: give the "
        "idempotency middleware a function `scope` that tells, or returns one text where all may share their responses"
    )


@cache
def _warn_of_cookies() -> None:
    """Once in a process."""
    _log.warning(
        "a request with an Idempotency-Key has cookies, and no other credential that tells whose it is: if one of them "
        "changes between two attempts, both will run, so give the idempotency middleware a function `scope`"
    )


@cache
def _warn_of_signatures() -> None:
    """Once in a process."""
    _log.warning(
        "a request with an Idempotency-Key has an Authorization header of a kind that is made anew for each attempt: "
        "two attempts will both run, so give the idempotency middleware a function `scope`"
    )


def _without_value(error: Exception) -> str:
    """The reason, without what was sent: a key does not belong in answers and logs."""
    return str(error) if isinstance(error, InvalidKey) else "it is too long, empty, or holds what cannot be seen"
