"""Servers that are killed at every step of a keyed request: a retry gives one effect and one answer."""

from __future__ import annotations

import socket
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.acceptance.service import Service
from tests.crash.crew import wait_until
from tests.crash.keyed_worker import Fate, Point, serve
from tests.services.service import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase
    from tests.crash.crew import Crew, Worker

EARLY = {Point.ASKED, Point.ADMITTED, Point.WORKING, Point.RECORDED}
"""Nothing was done yet when the server died here."""
_numbers = count()


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, fresh_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(fresh_database(request.param))) as service:
        service.execute("CREATE TABLE bill (number INTEGER, name VARCHAR(80))")
        yield service


def started(crew: Crew, service: Service, fate: Fate) -> tuple[Worker, httpx.Client]:
    port = free_port()
    worker = crew.start(f"server-{next(_numbers)}", serve, service.url, port, fate)

    def listens() -> bool:
        worker.check()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens, "the server listens")
    return worker, httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"idempotency-key": "7f9c"}, timeout=30)


def answered(client: httpx.Client, path: str) -> httpx.Response:
    """The answer when no other run is in the way."""
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.append(client.post(path))
        return answers[-1].status_code != 409

    wait_until(is_answered, "the dead server's lease ends")
    return answers[-1]


@pytest.mark.parametrize("path", ["/joined", "/apart"])
@pytest.mark.parametrize("point", Point, ids=lambda point: point.name)
def test_K_3_wherever_a_server_dies_a_retry_gives_one_effect_and_one_answer(
    service: Service, crew: Crew, point: Point, path: str
) -> None:
    victim, client = started(crew, service, Fate(point))
    with client, pytest.raises(httpx.TransportError):
        client.post(path)
    wait_until(victim.ended, f"it dies {point}")
    assert victim.killed()
    bills = service.rows("SELECT number, name FROM bill")
    assert bills == ([] if point in EARLY else [(1, "7f9c")])

    _, client = started(crew, service, Fate())
    with client:
        first, again = answered(client, path), answered(client, path)
    assert (first.status_code, first.json()) == (201, {"bill": 1})
    assert (again.status_code, again.json()) == (201, {"bill": 1})
    assert again.headers["idempotent-replayed"] == "true"
    assert service.rows("SELECT number, name FROM bill") == [(1, "7f9c")]
    was_recorded = point not in EARLY and (path == "/joined" or point in {Point.FINISHED, Point.SENDING})
    assert ("idempotent-replayed" in first.headers) is was_recorded
