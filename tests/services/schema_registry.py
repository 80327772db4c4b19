"""A schema registry for tests: the documented REST interface of Confluent's, over HTTP, in a thread.

There is no such server to install with pip, so this one stands in for it. What it must get right is checked from two
sides: our client uses it, and so does confluent-kafka's. It takes any schema, and refuses the subjects it is told to.
"""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class Registry:
    """What the server has, and how it behaves."""

    def __init__(self) -> None:
        self.url = ""
        self.schemas: list[dict[str, Any]] = []
        """By id, from 1 on."""
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.login: str | None = None
        """The Authorization header that it wants."""
        self.status: int | None = None
        """What it answers instead."""
        self.incompatible: set[str] = set()
        """Subjects that take no other schema."""

    def answer(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        parts = [unquote(one) for one in urlsplit(path).path.strip("/").split("/")]
        match method, parts:
            case "GET", ["schemas", "ids", number]:
                return self._by_id(int(number))
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, body or {})
            case "POST", ["subjects", subject]:
                return self._lookup(subject, body or {})
            case "GET", ["subjects", subject, "versions", version]:
                return self._version(subject, version)
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _by_id(self, number: int) -> tuple[int, Any]:
        if not 0 < number <= len(self.schemas):
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, _shown(self.schemas[number - 1])

    def _register(self, subject: str, body: dict[str, Any]) -> tuple[int, Any]:
        ids = self.subjects.setdefault(subject, [])
        try:
            schema = _schema(body)
        except ValueError:
            return 422, {"error_code": 42201, "message": "Invalid schema"}
        if schema not in self.schemas:
            if subject in self.incompatible and ids:
                return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        if number not in ids:
            ids.append(number)
        return 200, {"id": number}

    def _lookup(self, subject: str, body: dict[str, Any]) -> tuple[int, Any]:
        if subject not in self.subjects:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        for version, number in enumerate(self.subjects[subject], start=1):
            if self.schemas[number - 1] == _schema(body):
                return self._version(subject, str(version))
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        ids = self.subjects.get(subject, [])
        number = len(ids) if version == "latest" else int(version)
        if not 0 < number <= len(ids):
            return 404, {"error_code": 40402, "message": "Version not found"}
        found = _shown(self.schemas[ids[number - 1] - 1])
        return 200, {"subject": subject, "version": number, "id": ids[number - 1], **found}


def _schema(body: dict[str, Any]) -> dict[str, Any]:
    kind = body.get("schemaType", "AVRO")
    text = body["schema"]
    if kind == "AVRO":
        text = json.dumps(json.loads(text), separators=(",", ":"))
    else:
        base64.b64decode(text, validate=True)
    return {"schema": text, "schemaType": kind, "references": body.get("references") or []}


def _shown(schema: dict[str, Any]) -> dict[str, Any]:
    """As registries answer: without what is the default."""
    return {
        name: value
        for name, value in schema.items()
        if not (name == "schemaType" and value == "AVRO") and not (name == "references" and not value)
    }


@contextmanager
def running() -> Iterator[Registry]:
    """A registry that answers as long as this lasts."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._do()

        def do_POST(self) -> None:
            self._do()

        def _do(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            registry.requests.append(f"{self.command} {self.path}")
            answer: Any
            if registry.login is not None and self.headers.get("authorization") != registry.login:
                status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
            elif registry.status is not None:
                status, answer = registry.status, "<html>"
            else:
                status, answer = registry.answer(self.command, self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", MEDIA_TYPE)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Be silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
