"""A small web server: PUT declares a topic, POST keeps a message, GET gives a topic's messages, a line of JSON each.

A message with the header `answer` is answered with that status, as are those of the topic `status-418`, which are kept;
those of `endless` with an answer that does not end; those of `wait-…` with 503 and their payload as `Retry-After`.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LARGEST = int(sys.argv[2])
HEADERS = {
    "302": {"Location": "/"},
    "429": {"Retry-After": "120"},
    "503": {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"},
}
ENDLESS = b"x" * 65536


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        topic = Path(f"topic-{self.path.strip('/')}")
        self._answer(200, topic.read_bytes() if topic.exists() else b"")

    def do_PUT(self) -> None:
        Path(f"topic-{self.path.strip('/')}").touch()
        self._answer(201)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        topic = self.headers.get("ce-topic") or json.loads(body)["topic"]
        file = Path(f"topic-{topic}")
        if "answer" in self.headers:
            self._answer(int(self.headers["answer"]))
        elif topic.startswith("status-"):
            status = re.sub(r"\D", "", topic)
            self._keep(file, body)
            self._answer(int(status), headers=HEADERS.get(status))
        elif topic.startswith("wait-"):
            self._answer(503, headers={"Retry-After": body.decode("latin-1")})
        elif topic == "endless":
            self._go_on()
        elif len(body) > LARGEST:
            self._answer(413)
        elif not file.exists():
            self._answer(404)
        else:
            self._keep(file, body)
            self._answer(204)

    def _keep(self, file: Path, body: bytes) -> None:
        kept = {"path": self.path, "headers": dict(self.headers), "body": base64.b64encode(body).decode()}
        with file.open("ab", buffering=0) as lines:
            lines.write(json.dumps(kept).encode() + b"\n")

    def _go_on(self) -> None:
        """An answer that does not end."""
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):  # until nobody listens any more
            while True:
                self.wfile.write(ENDLESS)

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A server for many connections at once."""

    request_queue_size = 256
    daemon_threads = True


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
