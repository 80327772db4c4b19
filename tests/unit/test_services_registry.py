"""A server that is not available: tried once, reported, skipped for a person and a failure in CI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.services import registry
from tests.services.databases import need
from tests.services.packages import require_programs
from tests.services.ports import free_port
from tests.services.service import Service, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Absent(Service):
    title = "Absent"
    tries = 0

    def require(self) -> None:
        Absent.tries += 1
        raise Unavailable("nobody makes it any more")

    def prepare(self) -> None:
        raise AssertionError

    command = ping = prepare  # type: ignore[assignment] # never reached


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_started", {})
    monkeypatch.setattr(registry, "_missing", {})
    Absent.tries = 0
    yield
    registry.close_all()


def test_a_server_that_cannot_be_had_is_tried_once_and_reported() -> None:
    assert registry.missing() == {}
    assert not registry.available(Absent)
    assert not registry.available(Absent)
    assert Absent.tries == 1
    assert registry.missing() == {"Absent": "nobody makes it any more"}


def test_without_ci_a_missing_server_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NOT TESTED: Absent: nobody makes it"):
        need(Absent)


@pytest.mark.parametrize("value", ["true", "1", "True"])
def test_under_ci_a_missing_server_fails(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CI", value)
    with pytest.raises(pytest.fail.Exception, match="NOT TESTED: Absent: nobody makes it"):
        need(Absent)


def test_a_program_of_no_package_is_unavailable_to_who_may_not_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="no-such-program not found"):
        require_programs("no-such-program", packages=["no-such-package"])


def test_a_free_port_is_none_of_the_standard_ones() -> None:
    assert 20_000 <= free_port() < 30_000
