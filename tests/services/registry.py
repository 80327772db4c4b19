"""The servers of this test run: each is started when first asked for, once, and stopped at the end."""

from __future__ import annotations

from typing import TypeVar

from tests.services.service import Service, ServiceFailed, Unavailable

S = TypeVar("S", bound=Service)

_started: dict[type[Service], Service] = {}
_missing: dict[type[Service], tuple[type[Exception], str]] = {}


def get(kind: type[S]) -> S:
    """Return the run's server of this kind, started.

    Raise `Unavailable` or `ServiceFailed`, the same again at each call: what failed once is not tried again.
    """
    if kind in _missing:
        failure, reason = _missing[kind]
        raise failure(reason)
    if kind not in _started:
        new = kind()
        try:
            new.start()
        except (Unavailable, ServiceFailed) as error:
            _missing[kind] = (type(error), str(error))
            raise
        _started[kind] = new
    service = _started[kind]
    assert isinstance(service, kind)
    return service


def available(kind: type[Service]) -> bool:
    """Whether the server is available on this machine; it runs afterwards if it is."""
    try:
        get(kind)
    except Unavailable:
        return False
    return True


def missing() -> dict[str, str]:
    """Return the servers that were needed and not available, with the reasons."""
    return {kind.title: reason for kind, (_, reason) in _missing.items()}


def close_all() -> None:
    """Stop every server and remove what it left."""
    while _started:
        _, service = _started.popitem()
        service.close()
