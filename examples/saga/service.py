"""A service that others call by HTTP: its tables, and actions that happen once, however often they are asked for."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine

from postroom import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    Action = Callable[[Connection, dict[str, Any]], dict[str, str]]

EVERY_SEVENTH = 7


class Declined(Exception):
    """The answer is no."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.answer = {"code": code, "text": text}


@dataclass(frozen=True)
class Service:
    """One service. It knows nothing of sagas but the barrier, and has tables of its own."""

    name: str
    tables: Sequence[str]
    actions: Mapping[str, Action]

    def carry_out(self, engine: Engine, action: str, headers: Mapping[str, str], body: dict[str, Any]) -> Any:
        """Carry out what a saga asks for. A repetition, or an undo of what never happened, has no effect."""
        with engine.begin() as connection:
            if Inbox(self.name).barrier(connection, headers):
                return self.actions[action](connection, body)
        return {}


class QuietServer(ThreadingHTTPServer):
    """Says nothing of callers that are gone before they have their answer."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print any other error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def server(service: Service, database: str, port: int) -> ThreadingHTTPServer:
    """An HTTP server for a service. Every seventh answer is lost, although the work is done."""
    engine = create_engine(database, connect_args={"timeout": 30} if database.startswith("sqlite") else {})
    answers = itertools.count(1)

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(HTTPStatus.OK, {"service": service.name})

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            sent = self.rfile.read(length)
            if len(sent) < length:  # the caller was killed while it sent this
                return
            try:
                found = service.carry_out(engine, self.path.strip("/"), dict(self.headers), json.loads(sent))
            except Declined as no:
                self._answer(HTTPStatus.CONFLICT, no.answer)
            except ConnectionError as problem:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"problem": str(problem)})
            else:
                if next(answers) % EVERY_SEVENTH:
                    self._answer(HTTPStatus.OK, found)

        def _answer(self, status: HTTPStatus, answer: dict[str, str]) -> None:
            sent = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return QuietServer(("127.0.0.1", port), Requests)
