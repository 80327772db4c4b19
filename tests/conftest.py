"""Fixtures for all tests. Servers start when a test first asks for one, and stop with the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.services import registry
from tests.services.certificates import trust_nobody
from tests.services.databases import fresh_database as one_database
from tests.services.databases import need
from tests.services.mariadb import MariaDB
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgreSQL
from tests.services.ready import ready_database as one_ready_database

FreshDatabase = Callable[[str], str]

trust_nobody()

# Nothing is timed: the machine may be busy with something else.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
# For `make check` and the other Pythons; the whole suite tries more.
settings.register_profile("fewer examples", settings(), max_examples=20)


@pytest.fixture(scope="session")
def postgresql_server() -> PostgreSQL:
    """The run's PostgreSQL server. Do not stop it: a test that needs that starts a `PostgreSQL()` of its own."""
    return need(PostgreSQL)


@pytest.fixture(scope="session")
def mariadb_server() -> MariaDB:
    """The run's MariaDB server. Do not stop it: a test that needs that starts a `MariaDB()` of its own."""
    return need(MariaDB)


@pytest.fixture(scope="session")
def pgbouncer() -> PgBouncer:
    """The run's PgBouncer, in transaction mode before the run's PostgreSQL."""
    return need(PgBouncer)


@pytest.fixture
def fresh_database() -> Iterator[FreshDatabase]:
    """Give `fresh_database(kind) -> URL`: an empty database that is dropped after the test."""
    with ExitStack() as databases:
        yield lambda kind: databases.enter_context(one_database(kind))


@pytest.fixture
def ready_database() -> Iterator[FreshDatabase]:
    """Give the same as `fresh_database`, with Postroom's tables: for tests of anything but how these are made."""
    with ExitStack() as databases:
        yield lambda kind: databases.enter_context(one_ready_database(kind))


@pytest.fixture(scope="module")
def module_database() -> Iterator[FreshDatabase]:
    """Give the same as `fresh_database`, dropped after the module's last test."""
    with ExitStack() as databases:
        yield lambda kind: databases.enter_context(one_database(kind))


NOT_TESTED = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOT_TESTED] = {}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what a worker has missed to the run that started it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["missing"] = registry.missing()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker has missed; one that crashed says nothing."""
    node.config.stash[NOT_TESTED] |= getattr(node, "workeroutput", {}).get("missing", {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud which servers were not there, lest a green run be taken for a full one."""
    missing = terminalreporter.config.stash[NOT_TESTED] | registry.missing()
    if missing:
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        for title, reason in missing.items():
            terminalreporter.line(f"NOT TESTED: {title}: {reason}", red=True)


def pytest_unconfigure() -> None:
    """Stop the servers, also after Ctrl-C; if the run is killed, the supervisors do that."""
    registry.close_all()
