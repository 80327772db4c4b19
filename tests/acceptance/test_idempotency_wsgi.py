"""The idempotency middleware around plain WSGI applications: what servers, clients and applications get up to."""

from __future__ import annotations

import io
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, make_server

import msgspec
import pytest

from postroom.web.idempotency.keys import FORM
from postroom.web.wsgi import IdempotencyMiddleware
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.conftest import FreshDatabase

    Environ = dict[str, Any]
    Application = Callable[[Environ, Any], Iterable[bytes]]

LARGE = 3000
KEYED = {"HTTP_IDEMPOTENCY_KEY": "7f9c", "HTTP_AUTHORIZATION": "Bearer a"}


class Answer(NamedTuple):
    """What a server would send."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def problem(self) -> tuple[int, str]:
        assert ("content-type", "application/problem+json") in self.headers
        told = msgspec.json.decode(self.body)
        return self.status, told["type"].removeprefix("urn:postroom:idempotency:")


class Server:
    """Calls the application as a server does, and is as strict as the standard tells it to be."""

    def __init__(self, app: Application, url: str, **options: Any) -> None:
        self.app = IdempotencyMiddleware(app, database=url, **{"max_response_bytes": 2000, **options})

    def post(
        self, body: bytes = b"", *, keyed: bool = True, parts: int = 0, stream: Any = None, **environ: Any
    ) -> Answer:
        """Send a request. Where ``parts`` are told, the client goes after so many of the response."""
        started: list[Any] = []
        sent = b""
        given = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": str(len(body)), "wsgi.input": stream or io.BytesIO(body)}
        answer = self.app({**given, **(KEYED if keyed else {}), **environ}, lambda *told: started.append(told))
        try:
            for number, part in enumerate(answer, 1):
                sent += part
                if number == parts:
                    break
        finally:
            if hasattr(answer, "close"):
                answer.close()
        [(status, headers)] = started
        return Answer(int(status[:3]), headers, sent)

    def close(self) -> None:
        self.app.close()


@pytest.fixture
def url(ready_database: FreshDatabase) -> Iterator[str]:
    with closing(Service(ready_database("sqlite"))) as service:
        yield service.url


class Counting:
    """An application that counts what it has read."""

    def __init__(self) -> None:
        self.read: list[bytes] = []

    def __call__(self, environ: Environ, start_response: Any) -> list[bytes]:
        self.read.append(environ["wsgi.input"].read())
        start_response("201 Created", [("Content-Type", "text/plain")])
        return [b"done"]


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class Lost(io.RawIOBase):
    """A connection that breaks."""

    def read(self, _size: int = -1) -> bytes:
        raise ConnectionResetError


def test_K_2_a_request_that_is_cut_off_is_not_begun_so_that_the_whole_one_can_run(url: str) -> None:
    app = Counting()
    with closing(Server(app, url)) as server:
        assert server.post(b"x" * 50, CONTENT_LENGTH="100").problem == (400, "request-incomplete")
        assert server.post(stream=Lost(), CONTENT_LENGTH="100").problem == (400, "request-incomplete")
        assert server.post(b"x" * 100).status == 201
        assert server.post(b"x" * 100).body == b"done"
    assert app.read == [b"x" * 100]


def test_a_client_that_closes_its_connection_midway_may_send_the_request_again(url: str) -> None:
    app = Counting()
    with (
        closing(Server(app, url)) as behind,
        make_server("127.0.0.1", 0, behind.app, handler_class=Quiet) as server,
    ):
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            assert b" 400 " in _ask(server.server_port, b"x" * 50, 100)
            assert b" 201 " in _ask(server.server_port, b"x" * 100, 100)
        finally:
            server.shutdown()
            serving.join()
    assert app.read == [b"x" * 100]


def _ask(port: int, body: bytes, length: int) -> bytes:
    """The first line of the answer. The client sends the body, of the length that it announces or not, and no more."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        head = f"POST / HTTP/1.0\r\nIdempotency-Key: 7f9c\r\nAuthorization: a\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").readline()


def test_a_cut_off_request_that_may_have_its_key_in_the_body_is_not_begun_either(url: str) -> None:
    app = Counting()
    with closing(Server(app, url)) as server:
        cut_off = server.post(b"item=book", keyed=False, CONTENT_LENGTH="28", CONTENT_TYPE=FORM)
        assert cut_off.problem == (400, "request-incomplete")
    assert app.read == []


def test_a_stream_without_an_end_is_closed_some_time_after_its_client_has_gone_and_counts_as_done(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def app(_environ: Environ, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "application/x-ndjson")])
        try:
            while True:
                yield b"{}\n" * LARGE
        finally:
            ended.append("closed")

    monkeypatch.setattr("postroom.web.idempotency.response_state.DRAIN_SECONDS", 0.1)
    with closing(Server(app, url)) as server:
        assert server.post(parts=2).status == 200
        assert ended == ["closed"]
        assert server.post().problem == (409, "response-not-kept")
    assert ended == ["closed"]


def test_a_stream_may_be_closed_while_another_thread_draws_from_it(url: str) -> None:
    drawing, may_go_on = threading.Event(), threading.Event()

    def app(_environ: Environ, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"x" * LARGE
        drawing.set()
        assert may_go_on.wait(30)
        yield b"y"

    with closing(Server(app, url)) as server, ThreadPoolExecutor(2) as threads:
        environ = {"REQUEST_METHOD": "POST", "wsgi.input": io.BytesIO(), **KEYED}
        stream: Any = server.app(environ, lambda *_: None)
        drawn = threads.submit(next, stream)
        assert drawing.wait(30)
        closed = threads.submit(stream.close)
        wait([closed], timeout=0.2)  # it fails at once, or waits for the other
        may_go_on.set()
        closed.result(30)
        assert drawn.result(30) == b"x" * LARGE
        assert server.post().problem == (409, "response-not-kept")


@pytest.mark.parametrize("parts", [0, 1])
def test_a_stream_is_closed_once_however_it_ends(url: str, parts: int) -> None:
    class Body:
        closed = 0

        def __iter__(self) -> Iterator[bytes]:
            yield from [b"x" * LARGE, b"y", b"z"]

        def close(self) -> None:
            self.closed += 1

    body = Body()

    def app(_environ: Environ, start_response: Any) -> Body:
        start_response("200 OK", [])
        return body

    with closing(Server(app, url)) as server:
        assert len(server.post(parts=parts).body) == (LARGE if parts else LARGE + 2)
        assert body.closed == 1
        assert server.post().problem == (409, "response-not-kept")


def test_a_response_that_was_made_of_an_error_is_not_recorded(url: str) -> None:
    runs: list[int] = []

    def app(_environ: Environ, start_response: Any) -> list[bytes]:
        runs.append(1)
        start_response("200 OK", [])
        try:
            int("not today")
        except ValueError:
            start_response("500 Oh", [], sys.exc_info())
        return [b"sorry"]

    with closing(Server(app, url)) as server:
        answers = [server.post() for _ in range(2)]
    assert [(answer.status, answer.body) for answer in answers] == [(500, b"sorry")] * 2
    assert len(runs) == 2


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "x", "²", "٣", "1_0"])
def test_a_length_that_is_none_is_refused(url: str, length: str) -> None:
    app = Counting()
    with closing(Server(app, url)) as server:
        assert server.post(b"abc", CONTENT_LENGTH=length).problem == (400, "request-incomplete")
    assert app.read == []


def test_two_keys_that_a_server_has_joined_are_refused(url: str) -> None:
    with closing(Server(Counting(), url)) as server:
        for joined in ("a,b", "a, b", '"a", "b"'):
            assert server.post(HTTP_IDEMPOTENCY_KEY=joined).problem == (400, "key-invalid")
        assert server.post(HTTP_IDEMPOTENCY_KEY='"a, b"').status == 201


@pytest.mark.parametrize("size", [1, LARGE])
def test_an_error_after_the_headers_are_sent_is_raised_and_the_request_runs_again(url: str, size: int) -> None:
    runs: list[int] = []

    def app(_environ: Environ, start_response: Any) -> Iterator[bytes]:
        runs.append(1)
        start_response("200 OK", [])
        yield b"x" * size
        yield b"y"
        if len(runs) < 3:
            try:
                int("not today")
            except ValueError:
                start_response("500 Oh", [], sys.exc_info())

    with closing(Server(app, url)) as server:
        for _ in range(2):
            with pytest.raises(ValueError, match="not today"):
                server.post()
        assert len(server.post().body) == size + 1
    assert len(runs) == 3


def test_what_was_written_counts_as_sent(url: str) -> None:
    def app(_environ: Environ, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])(b"half")
        try:
            int("not today")
        except ValueError:
            start_response("500 Oh", [], sys.exc_info())
        return [b"sorry"]

    with closing(Server(app, url)) as server, pytest.raises(ValueError, match="not today"):
        server.post()


def test_a_large_page_about_an_error_is_not_recorded_either(url: str) -> None:
    def app(_environ: Environ, start_response: Any) -> list[bytes]:
        try:
            int("not today")
        except ValueError:
            start_response("500 Oh", [], sys.exc_info())
        return [b"sorry" * LARGE]

    with closing(Server(app, url)) as server:
        assert [len(server.post().body) for _ in range(2)] == [5 * LARGE] * 2


@pytest.mark.parametrize("parts", [[b"x"], [b"", b"x" * LARGE], [b""], []])
def test_an_application_that_never_starts_its_response_has_failed(url: str, parts: list[bytes]) -> None:
    starts = False

    def app(_environ: Environ, start_response: Any) -> list[bytes]:
        if starts:
            start_response("204 No Content", [])
        return parts

    with closing(Server(app, url)) as server:
        with pytest.raises(RuntimeError, match="has not called start_response"):
            server.post()
        starts = True
        assert server.post().status == 204


def test_an_application_that_starts_twice_has_failed(url: str) -> None:
    def app(_environ: Environ, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        start_response("201 Created", [])
        return []

    with closing(Server(app, url)) as server, pytest.raises(RuntimeError, match="twice"):
        server.post()


def test_the_answer_to_a_head_request_is_given_again_without_a_length_that_it_did_not_have(url: str) -> None:
    def app(_environ: Environ, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "5"), ("ETag", "a")])
        return []

    with closing(Server(app, url, optional=["/"])) as server:
        assert server.post(REQUEST_METHOD="HEAD").headers == [("Content-Length", "5"), ("ETag", "a")]
        again = server.post(REQUEST_METHOD="HEAD")
        assert again.headers == [("etag", "a"), ("idempotent-replayed", "true")]
        other = server.post(b"x", REQUEST_METHOD="HEAD")
        assert (other.status, other.body) == (422, b"")
