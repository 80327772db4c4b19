"""Servers that are killed at every step of a keyed request: a retry gives one effect and one answer."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.acceptance.service import Service
from tests.crash.keyed_worker import Fate, Point, serve
from tests.crash.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase
    from tests.crash.processes import Processes

EARLY = {Point.ASKED, Point.ADMITTED, Point.WORKING, Point.RECORDED}
"""Nothing was done yet when the server died here."""


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(request.param))) as service:
        service.execute("CREATE TABLE bill (number INTEGER, name VARCHAR(80))")
        yield service


class Server:
    """A server process."""

    def __init__(self, processes: Processes, name: str, service: Service, fate: Fate) -> None:
        self._port = processes.directory / f"{name}.port"
        self.worker = processes.start(name, serve, service.url, self._port, fate)

    def client(self) -> httpx.Client:
        """Requests to it, as soon as it listens."""
        wait_until(self._listens, "the server listens")
        url = f"http://127.0.0.1:{self._port.read_text()}"
        return httpx.Client(base_url=url, headers={"idempotency-key": "7f9c", "authorization": "a"}, timeout=30)

    def _listens(self) -> bool:
        self.worker.check()
        return self._port.exists()


def answered(client: httpx.Client, path: str) -> httpx.Response:
    """The answer when no other run is in the way."""
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.append(client.post(path))
        return answers[-1].status_code != 409

    wait_until(is_answered, "the dead server's lease ends")
    return answers[-1]


BY_MIDDLEWARE = {Point.FINISHING, Point.FINISHED}
"""Where the middleware records a response, which it does not where the handler has."""
CASES = [
    *(("/joined", point) for point in Point if point not in BY_MIDDLEWARE),
    *(("/apart", point) for point in (Point.COMMITTED, Point.FINISHING, Point.FINISHED)),
]


@pytest.mark.parametrize(("path", "point"), CASES, ids=[f"{path[1:]}-{point.name}" for path, point in CASES])
def test_K_3_wherever_a_server_dies_a_retry_gives_one_effect_and_one_answer(
    service: Service, processes: Processes, path: str, point: Point
) -> None:
    victim, survivor = Server(processes, "victim", service, Fate(point)), Server(processes, "survivor", service, Fate())
    with victim.client() as client, pytest.raises(httpx.TransportError):
        client.post(path)
    wait_until(victim.worker.ended, f"it dies {point}")
    assert victim.worker.killed()
    bills = service.rows("SELECT number, name FROM bill")
    assert bills == ([] if point in EARLY else [(1, "7f9c")])

    with survivor.client() as client:
        first, again = answered(client, path), answered(client, path)
    assert (first.status_code, first.json()) == (201, {"bill": 1})
    assert (again.status_code, again.json()) == (201, {"bill": 1})
    assert again.headers["idempotent-replayed"] == "true"
    assert service.rows("SELECT number, name FROM bill") == [(1, "7f9c")]
    was_recorded = point not in EARLY and (path == "/joined" or point in {Point.FINISHED, Point.SENDING})
    assert ("idempotent-replayed" in first.headers) is was_recorded
