"""What a WSGI application answers, held back from the server and held to PEP 3333 meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.rules.replay import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from postroom.web.idempotency.keyed_request import KeyedRequest


class Answer:
    """The `start_response` of an application, and its parts as they come."""

    def __init__(self, keyed: KeyedRequest) -> None:
        self._keyed = keyed
        self._told: tuple[str, list[tuple[str, str]]] | None = None
        self._written: list[bytes] = []
        self._begun = False  # the first bytes have come, with which a server would have sent the headers

    @property
    def told(self) -> tuple[str, list[tuple[str, str]]]:
        """Status and headers. Raises `RuntimeError` where the application has not told them."""
        if self._told is None:
            raise RuntimeError("the application has not called start_response")
        return self._told

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        """The `start_response` that it is given.

        After an error it may be called again, until the headers are sent; then it raises the error, as a server does.
        """
        if exc_info:
            self._keyed.failed = True
            if self._begun:
                raise exc_info[1].with_traceback(exc_info[2])
        elif self._told is not None:
            raise RuntimeError("the application has called start_response twice, and without exc_info")
        self._told = (status, headers)
        return self._write

    def parts(self, body: Iterable[bytes]) -> Generator[bytes]:
        """The body's parts, with what was written the old way before them. The body is closed at the end."""
        try:
            for part in body:
                yield from self._taken()
                self._begin(part)
                yield part
            yield from self._taken()
        finally:
            if hasattr(body, "close"):
                body.close()

    def response(self, body: bytes = b"") -> Response:
        """It as the ledger has it."""
        status, headers = self.told
        return Response(int(status[:3]), tuple(headers), body)

    def _write(self, part: bytes) -> None:
        self._begin(part)
        self._written.append(part)

    def _begin(self, part: bytes) -> None:
        if part and not self._begun:
            self._begun = bool(self.told)

    def _taken(self) -> Iterator[bytes]:
        written, self._written[:] = list(self._written), []
        yield from written
