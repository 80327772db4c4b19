"""What becomes of a request before it runs: does it have a key, whose, and for what? Nothing here waits or writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom import encoding
from postroom.errors import InvalidEntry
from postroom.idempotency import MOST_CHARACTERS, digest_of, entry_of, scope_of
from postroom.rules.url_paths import without_trailing_slash
from postroom.web.idempotency import problems, recorded_responses
from postroom.web.idempotency.forms import without_boundary
from postroom.web.idempotency.keys import InvalidKey, key_in_body, key_in_header, may_hold_key
from postroom.web.idempotency.options import as_text
from postroom.web.idempotency.problems import RequestRefused
from postroom.web.idempotency.routes import Need, Route, Routes
from postroom.web.idempotency.sender import sender_of

if TYPE_CHECKING:
    from postroom.rules.replay import Entry, Response
    from postroom.web.idempotency.options import Options
    from postroom.web.requests import Request


class Candidate(NamedTuple):
    """A request that has a key, or may have one in its body."""

    request: Request
    route: Route
    key: str | None


class Policy:
    """The options as decisions."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._routes = Routes(options.required, options.optional)
        self._kept = None if options.kept_headers is None else {name.lower() for name in options.kept_headers}
        self.body_field = options.body_field
        self.max_body_bytes = options.max_body_bytes
        self.max_response_bytes = options.max_response_bytes
        self.wait_seconds = options.wait_seconds
        self.conflict_status = options.conflict_status

    def candidate(self, request: Request) -> Candidate | None:
        """The request, if its body is needed for its key or digest. None if it has no key. Raises `RequestRefused`."""
        route = self._routes.route(request)
        if route.need is Need.NONE:
            return None
        key = self._key_in_header(request)
        if key is None and (self.body_field is None or not may_hold_key(request)):
            self._refuse_without_key(route)
            return None
        found = Candidate(request, route, key)
        if (request.announced_bytes or 0) > self.max_body_bytes:
            self._refuse_large(found)
            return None
        return found

    def entry(self, candidate: Candidate, body: bytes) -> Entry | None:
        """The ledger entry for a run of this request. None if it runs without a key. Raises `RequestRefused`."""
        request, route, key = candidate
        if len(body) > self.max_body_bytes:
            self._refuse_large(candidate)
            return None
        try:
            if key is None and self.body_field is not None:
                key = key_in_body(request, body, self.body_field)
            if key is None:
                self._refuse_without_key(route)
                return None
            content = without_boundary(request.header("content-type") or "", body)
            digest = digest_of(request.method, request.target, request.query, content)
            scope, digest = self._whose(request, digest)
            return entry_of(self._scope(scope, self._operation(candidate)), key, digest)
        except InvalidEntry as error:
            raise RequestRefused(problems.invalid_key(_without_value(error))) from None

    def is_recorded(self, status: int) -> bool:
        """Whether a response of this status ends its request."""
        return status not in self._options.unrecorded

    def record(self, response: Response) -> Response:
        """What is kept of a whole response: not its body, if that is too large."""
        return (self.not_kept if len(response.body) > self.max_response_bytes else self.kept)(response)

    def kept(self, response: Response) -> Response:
        """What is kept of a response that can be replayed."""
        return recorded_responses.kept(response, self._kept)

    def not_kept(self, response: Response) -> Response:
        """What is kept of one that cannot."""
        return recorded_responses.not_kept(response, self._kept)

    def _refuse_large(self, candidate: Candidate) -> None:
        """Raise `RequestRefused` for too large a body, unless the request may run without a key.

        If the route requires a key and the header has none, it may not: the key could be in the body, or nowhere.
        """
        need, passes = candidate.route.need, self._options.pass_large_requests
        if need is Need.OPTIONAL if candidate.key is None else passes:
            return
        raise RequestRefused(problems.request_too_large(self.max_body_bytes))

    def _key_in_header(self, request: Request) -> str | None:
        try:
            return key_in_header(request)
        except InvalidKey as error:
            raise RequestRefused(problems.invalid_key(str(error))) from None

    def _refuse_without_key(self, route: Route) -> None:
        if route.need is Need.REQUIRED:
            raise RequestRefused(problems.missing_key())

    def _whose(self, request: Request, digest: str) -> tuple[str, str]:
        """The tenant, and the digest together with cookies that may tell whose request it is, next to a credential.

        They are not part of the scope: such cookies are renewed, and the request would run again with a new one. So it
        is refused instead, as another request, unless the application names the scope.
        """
        given = self._options.scope
        if given is not None:
            return as_text("scope", given(request)), digest
        sender = sender_of(request)
        return sender.scope, encoding.digest(digest, *sender.logins) if sender.logins else digest

    def _scope(self, tenant: str, operation: str) -> str:
        """Tenant and operation; their hash, if they are too long for a scope or hold invisible characters."""
        scope = scope_of(tenant, operation)
        if len(scope) <= MOST_CHARACTERS and scope.isprintable() and scope == scope.strip():
            return scope
        return f"sha256:{encoding.digest(scope.encode(errors='surrogatepass'))}"

    def _operation(self, candidate: Candidate) -> str:
        request = candidate.request
        if self._options.operation is not None:
            return as_text("operation", self._options.operation(request))
        if candidate.route.operation:
            return candidate.route.operation
        return f"{request.method} {without_trailing_slash(request.find_route() or request.path)}"


def check_length(request: Request, received: int | None = None) -> None:
    """Raise `RequestRefused` if the announced length is invalid, or if less than that was received.

    Then the client has disconnected, and its next attempt has another body.
    """
    if request.header("content-length") and request.announced_bytes is None:
        raise RequestRefused(problems.request_incomplete("its Content-Length is not a length"))
    if received is not None and received < (request.announced_bytes or 0):
        raise RequestRefused(problems.request_incomplete("less has come than was announced"))


def _without_value(error: Exception) -> str:
    """The reason, without what was sent: a key does not belong in responses and logs."""
    return str(error) if isinstance(error, InvalidKey) else "it is too long, empty, or holds invisible characters"
