"""The idempotency middleware for Django.

In the settings::

    MIDDLEWARE = [..., "postroom.web.django.IdempotencyMiddleware"]
    POSTROOM_IDEMPOTENCY = {"required": ["POST /payments"]}

Put it behind the middleware that authenticates. The ledger is in the database ``default``, or in the one whose alias is
given as ``using``; a migration creates its tables by `create_tables`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import got_request_exception
from django.http import HttpResponse, RawPostDataException, UnreadablePostError
from django.urls import Resolver404, resolve

from postroom.rules.replay import Response
from postroom.web.idempotency.bodies import announced_bytes, incomplete, refuse_cut_off
from postroom.web.idempotency.django_desk import DjangoDesk, create_tables, setup_of
from postroom.web.idempotency.django_streams import record_at_the_end
from postroom.web.idempotency.keyed_request import PLACE
from postroom.web.idempotency.options import Options
from postroom.web.idempotency.policy import Refused
from postroom.web.idempotency.sync_exchange import KeyedRun
from postroom.web.requests import Request
from postroom.web.wsgi import told_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.web.idempotency.policy import Asked

__all__ = ["IdempotencyMiddleware", "create_tables"]

_REACHED = f"{PLACE}.reached"
_SINGLE = {"set-cookie", "content-type", "content-disposition", "location", "etag", "retry-after", "last-modified"}
"""Headers that are no lists: of two, the last counts."""
TOO_LATE = (
    "another middleware has read the request's body, as request.POST of an uploaded form: in MIDDLEWARE, "
    "postroom.web.django.IdempotencyMiddleware has to come before it"
)


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once; a client that asks again gets the same response.

    Its options are in the setting `POSTROOM_IDEMPOTENCY`. Its connections are Django's. Raises `InvalidSetting`.
    """

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        given = getattr(settings, "POSTROOM_IDEMPOTENCY", {})
        self._setup, using = setup_of(given)
        self._body_field = given.get("body_field", Options.body_field)
        self._desk = DjangoDesk(self._setup, using)
        got_request_exception.connect(_mark)

    def __call__(self, request: Any) -> Any:
        """Answer a request."""
        try:
            return self._handle(request)
        except Refused as refused:
            return _as_django(refused.response)

    def process_view(self, request: Any, *_view: Any) -> None:
        """The view is about to be called: no middleware before this one has refused it."""
        request.META[_REACHED] = True

    def process_exception(self, request: Any, exception: Exception) -> None:
        """A view has raised: another middleware may make a response of it before this one sees it."""
        del exception
        _mark(request=request)

    def _handle(self, request: Any) -> Any:
        asked = self._setup.policy.look_at(_request(request))
        if asked is None:
            return self._get_response(request)
        body = self._body(request, asked)
        is_large = len(body) > self._setup.policy.max_body_bytes
        if is_large:
            self._setup.policy.refuse_large(asked)
        entry = None if is_large else self._setup.policy.entry(asked, body)
        if entry is None:
            return self._get_response(request)
        admitted = self._desk.drive(self._setup.clerk.admit(entry))
        if isinstance(admitted, Response):
            return _as_django(admitted)
        run = KeyedRun(self._desk, self._setup, self._setup.keyed(admitted))
        request.META[PLACE] = run.keyed
        with run.failing():
            answer = self._get_response(request)
            if _was_refused(request):
                run.give_up()
                return answer
            return self._concluded(run, answer)

    def _body(self, request: Any, asked: Asked) -> bytes:
        """The body. Raises `Refused` where it is not whole, `ImproperlyConfigured` where someone else has read it."""
        announced_bytes(asked.request)
        try:
            body = bytes(request.body)
        except UnreadablePostError:
            raise incomplete("the connection was lost") from None
        except RawPostDataException:
            is_form = request.POST or request.FILES
            if is_form and asked.key is None and self._body_field not in request.POST:
                return b""  # in which there is no key either
            raise ImproperlyConfigured(TOO_LATE) from None
        refuse_cut_off(asked.request, len(body))
        return body

    def _concluded(self, run: KeyedRun, answer: Any) -> Any:
        if run.has_failed(answer.status_code):
            run.give_up()
            return answer
        head = Response(answer.status_code, tuple(answer.items()))
        if answer.streaming:
            record_at_the_end(run, answer, head)
            return answer
        if len(answer.content) > self._setup.policy.max_response_bytes:
            run.conclude_stream(head)
            return answer
        instead = run.conclude(Response(head.status, head.headers, answer.content))
        return answer if instead is None else _as_django(instead)


def _mark(*, request: Any, **_: Any) -> None:
    """Something has raised, of which Django makes a response: a view, or a middleware behind this one."""
    if request is not None and PLACE in request.META:
        request.META[PLACE].failed = True


def _was_refused(request: Any) -> bool:
    """Whether the `process_view` of a middleware before this one has answered, as that which checks CSRF tokens does.

    They are called just before the view, and so, for all that they stand before this one, in the midst of the run.
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
    """It as Django has it, where each header has one value: those that were sent twice are joined where they may be."""
    answer = HttpResponse(response.body, status=response.status)
    del answer["content-type"]  # Django's default, where the response had none
    for name, value in response.headers:
        answer[name] = f"{answer[name]}, {value}" if name in answer and name not in _SINGLE else value
    return answer
