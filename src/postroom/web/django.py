"""The idempotency middleware for Django.

In the settings::

    MIDDLEWARE = [..., "postroom.web.django.IdempotencyMiddleware"]
    POSTROOM_IDEMPOTENCY = {"required": ["POST /payments"]}

Put it behind the middleware that authenticates. The ledger is in the database ``default``, or in the one whose alias is
given as ``using``. A migration creates its tables with `create_tables`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import got_request_exception
from django.db import connections, transaction
from django.http import HttpResponse, RawPostDataException, UnreadablePostError
from django.urls import Resolver404, resolve

from postroom.errors import InvalidSetting
from postroom.rules.replay import Response
from postroom.store.connections.kinds import sync_kind
from postroom.store.sql.dialect import DIALECTS
from postroom.store.sql.steps import run
from postroom.web.django_tables import create_tables
from postroom.web.idempotency.core import Core
from postroom.web.idempotency.keyed_flow import Do
from postroom.web.idempotency.keyed_request import ENVIRON_KEY
from postroom.web.idempotency.lease_renewal import LeaseRenewal
from postroom.web.idempotency.policy import check_length
from postroom.web.idempotency.problems import RequestRefused, request_incomplete
from postroom.web.idempotency.sync_exchange import RecordedStream, SyncExchange
from postroom.web.requests import Request
from postroom.web.wsgi import told_by

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine

    from postroom.rules.replay import Entry
    from postroom.web.idempotency.keyed_flow import Flow, Pause
    from postroom.web.idempotency.policy import Candidate

T = TypeVar("T")

__all__ = ["DjangoConnections", "IdempotencyMiddleware", "core_of", "create_tables"]

_REACHED = f"{ENVIRON_KEY}.reached"
_SINGLE = {"set-cookie", "content-type", "content-disposition", "location", "etag", "retry-after", "last-modified"}
"""Headers that are not lists: of two, the last counts."""
TOO_LATE = (
    "another middleware has read the request's body, as request.POST of an uploaded form: in MIDDLEWARE, "
    "postroom.web.django.IdempotencyMiddleware has to come before it"
)


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once; a client that asks again gets the same response.

    Its options are in the setting `POSTROOM_IDEMPOTENCY`. It uses Django's connections. Under ASGI, async views stay in
    the event loop, and a request that has begun ends even if its client disconnects. Raises `InvalidSetting`.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        self._core, self._connections = core_of(getattr(settings, "POSTROOM_IDEMPOTENCY", {}))
        self._renewal = LeaseRenewal(self._core.lease, self._renew)
        self._running: set[asyncio.Future[Any]] = set()
        got_request_exception.connect(_mark)
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        """Answer a request; in an async chain of middleware, return what does so."""
        if self._is_async:
            return self._acall(request)
        try:
            return self._handle(request)
        except RequestRefused as refused:
            return _as_django(refused.response)

    async def _acall(self, request: Any) -> Any:
        try:
            return await self._ahandle(request)
        except RequestRefused as refused:
            return _as_django(refused.response)

    def process_view(self, request: Any, *_view: Any) -> None:
        """The view is about to be called: no outer middleware has refused the request."""
        request.META[_REACHED] = True

    def process_exception(self, request: Any, exception: Exception) -> None:
        """A view has raised: another middleware may turn that into a response before this one sees it."""
        del exception
        _mark(request=request)

    def _handle(self, request: Any) -> Any:
        candidate = self._core.policy.candidate(_request(request))
        begun = None if candidate is None else self._begin(request, candidate)
        if begun is None:
            return self._get_response(request)
        if not isinstance(begun, SyncExchange):
            return begun
        with begun.released_on_error():
            return self._end(request, begun, self._get_response(request))

    async def _ahandle(self, request: Any) -> Any:
        candidate = self._core.policy.candidate(_request(request))
        begun = None if candidate is None else await sync_to_async(self._begin)(request, candidate)
        if begun is None:
            return await self._get_response(request)
        if not isinstance(begun, SyncExchange):
            return begun
        # Django cancels this when the client disconnects. A sync view goes on even so, and its key must wait for it.
        running = self._kept(self._arun(request, begun))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._kept(_close_after(running))
            raise

    def _kept(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """A task that nobody need wait for."""
        running = asyncio.ensure_future(coroutine)
        self._running.add(running)
        running.add_done_callback(self._ended)
        return running

    async def _arun(self, request: Any, exchange: SyncExchange) -> Any:
        try:
            answer = await self._get_response(request)
            return await sync_to_async(self._end)(request, exchange, answer)
        except BaseException:
            await sync_to_async(exchange.release)()
            raise

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # nobody else may look at it

    def _begin(self, request: Any, candidate: Candidate) -> SyncExchange | HttpResponse | None:
        """Admit a request. Returns the response, if there is one already, and None if it runs without a key."""
        entry = self._core.policy.entry(candidate, self._body(request, candidate))
        if entry is None:
            return None
        admitted = self._connections.drive(self._core.flow.admit(entry))
        if isinstance(admitted, Response):
            return _as_django(admitted)
        keyed = request.META[ENVIRON_KEY] = self._core.keyed_request(admitted)
        renewal = None if self._connections.in_transaction else self._renewal
        return SyncExchange(self._core, self._connections, keyed, renewal)

    def _end(self, request: Any, exchange: SyncExchange, answer: Any) -> Any:
        """Record the answer of a request, or release its key; returns what to send."""
        if _was_refused(request):
            exchange.release()
            return answer
        return _recorded(exchange, answer)

    def _body(self, request: Any, candidate: Candidate) -> bytes:
        """The body. Raises `RequestRefused` if it is not whole, `ImproperlyConfigured` if it was read already."""
        check_length(candidate.request)
        try:
            body = bytes(request.body)
        except UnreadablePostError:
            raise RequestRefused(request_incomplete("the connection was lost")) from None
        except RawPostDataException:
            is_form = request.POST or request.FILES
            if is_form and candidate.key is None and self._core.policy.body_field not in request.POST:
                return b""  # there is no key in it
            raise ImproperlyConfigured(TOO_LATE) from None
        check_length(candidate.request, len(body))
        return body

    def _renew(self, entry: Entry) -> None:
        """Renew a lease, in the thread that does so, on a connection that is not kept."""
        try:
            self._connections.drive(self._core.flow.renew(entry))
        finally:
            self._connections.close()


class DjangoConnections:
    """The ledger on Django's connections, one for each thread, and so in the transactions of Django's tests, too.

    Outside a transaction each step commits. Inside one, such as a test's or an outer middleware's, it is part of it.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def in_transaction(self) -> bool:
        """Whether this thread's connection has an open transaction: nobody else sees the entry then."""
        return bool(connections[self.alias].in_atomic_block)

    def drive(self, flow: Flow[T]) -> T:
        """Run the flow to its end."""
        return run(flow, self._act)

    def close(self) -> None:
        """Close this thread's connection."""
        connections[self.alias].close()

    def _act(self, action: Do | Pause) -> Any:
        if not isinstance(action, Do):
            time.sleep(action.seconds)
            return None
        with transaction.atomic(using=self.alias):
            return run(action.steps, sync_kind(connections[self.alias], "").execute)


def core_of(given: object) -> tuple[Core, DjangoConnections]:
    """The core and connections for the options in Django's settings. Raises `InvalidSetting`."""
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"POSTROOM_IDEMPOTENCY is of the type {type(given).__name__}: give a dict of options")
    options = dict(given)
    using = options.pop("using", "default")
    if using not in list(connections):
        raise InvalidSetting(f"using = {using!r} is not one of Django's DATABASES: there are {', '.join(connections)}")
    if options.pop("database", None) is not None:
        raise InvalidSetting(
            "the option database is not for Django, whose tests would write there: leave it out, or give the alias of "
            "one of Django's DATABASES as using"
        )
    vendor: str = connections[using].vendor
    if vendor not in DIALECTS:
        raise InvalidSetting(f"using = {using!r} is a database of {vendor}: use PostgreSQL, MySQL/MariaDB or SQLite")
    return Core(options, vendor), DjangoConnections(using)


def _recorded(exchange: SyncExchange, answer: Any) -> Any:
    """The answer, recorded; a stream, which is recorded at its end; or the response to send instead."""
    exchange.response.start(answer.status_code, tuple(answer.items()), streamed=answer.streaming)
    if not answer.streaming:
        instead = exchange.finish(answer.content)
        return answer if instead is None else _as_django(instead)
    if answer.is_async:
        answer.streaming_content = _recorded_at_the_end(exchange, answer.streaming_content)
        answer.close = _both(exchange.abandon, answer.close)
    else:
        stream = RecordedStream(exchange, iter(answer.streaming_content))
        answer.streaming_content = stream
        answer.close = _both(stream.close, answer.close)  # ours first: it may still need parts of the source
    return answer


async def _recorded_at_the_end(exchange: SyncExchange, parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """As `RecordedStream`, but the parts of a stream of events are passed on at once.

    When the client disconnects, Django cancels the stream: it counts as done when the response is closed.
    """
    late: list[bytes] = []
    try:
        async for part in parts:
            late.append(part)
            while len(late) > (0 if exchange.response.is_event_stream else 1):
                yield late.pop(0)
    except Exception:
        await sync_to_async(exchange.release)()
        raise
    await sync_to_async(exchange.finish)()
    for part in late:
        yield part


async def _close_after(running: asyncio.Future[Any]) -> None:
    """Close the connections of a request that has gone on without its client: Django has already looked after them."""
    await asyncio.wait([running])
    await sync_to_async(_close_connections)()


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _both(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def close() -> None:
        try:
            first()
        finally:
            then()

    return close


def _mark(*, request: Any, **_: Any) -> None:
    """A view, or a middleware behind this one, has raised, and Django turns that into a response."""
    if request is not None and ENVIRON_KEY in request.META:
        request.META[ENVIRON_KEY].failed = True


def _was_refused(request: Any) -> bool:
    """Whether the `process_view` of an outer middleware has answered, such as the one that checks CSRF tokens.

    Django calls these just before the view, so in the middle of our run, although they are outside of it.
    """
    return request.resolver_match is not None and _REACHED not in request.META


def _request(request: Any) -> Request:
    target, _, query = request.get_full_path().partition("?")
    return Request(
        method=request.method.upper(),
        path=request.path_info,
        target=target,
        query=query,
        headers=tuple((name.lower(), value) for name, value in request.headers.items()),
        raw=request,
        find_route=cache(lambda: _route(request)),
        told_by_server=told_by(request.META),
    )


def _route(request: Any) -> str:
    try:
        return str(resolve(request.path_info, getattr(request, "urlconf", None)).route)
    except Resolver404:
        return ""


def _as_django(response: Response) -> HttpResponse:
    """The response as Django has it, with one value for each header: repeated headers are joined if they may be."""
    answer = HttpResponse(response.body, status=response.status)
    del answer["content-type"]  # Django's default, if the response had none
    for name, value in response.headers:
        answer[name] = f"{answer[name]}, {value}" if name in answer and name not in _SINGLE else value
    return answer
