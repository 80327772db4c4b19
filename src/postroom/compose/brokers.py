"""Make the brokers and sources that settings and arguments name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from postroom.brokers.schemes import BRIDGES, CLIENTS, load
from postroom.errors import InvalidSetting
from postroom.rules.failures import DEFAULT_CLASSIFIER, Classifier
from postroom.rules.routing import ANYTHING
from postroom.runtime.functions import load_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.brokers.function import Function
    from postroom.brokers.port import Broker
    from postroom.settings import Settings
    from postroom.sources.port import Source


def as_broker(given: object, settings: Settings, classifier: Classifier) -> tuple[Broker, bool]:
    """The broker for an argument that is a broker, a URL, a function or None; and whether it was made here.

    None stands for the settings' URL. Raises `InvalidSetting`.
    """
    from postroom.brokers.function import FunctionBroker

    if given is None:
        return open_broker(settings, classifier), True
    if isinstance(given, str):
        return broker_at(given, settings, classifier), True
    if hasattr(given, "publish") and hasattr(given, "capabilities"):
        broker: Broker = given  # type: ignore[assignment]  # it has what a broker has
        return broker, False
    function: Function = given  # type: ignore[assignment]  # `check_broker` has looked at it
    return FunctionBroker(function, settings.concurrency, classifier), True


def as_source(given: object, settings: Settings, consumer: str, topics: Sequence[str]) -> tuple[Source | None, bool]:
    """The source for an argument that is a source, a broker in memory, a URL or None; and whether it was made here.

    None stands for the settings' URL; without that, there is no source. Raises `InvalidSetting`.
    """
    from postroom.brokers.memory import MemoryBroker
    from postroom.sources.urls import open_source

    if isinstance(given, MemoryBroker):
        from postroom.sources.memory import MemorySource

        return MemorySource(given, consumer, topics), True
    if given is None or isinstance(given, str):
        url = settings.broker
        is_called = url is None or url.partition(":")[0] in {"http", "https"}  # webhooks come by themselves
        return (None if url is None or is_called else open_source(url, consumer, topics)), True
    if not hasattr(given, "receive") or not hasattr(given, "acknowledge"):
        raise InvalidSetting(f"broker = {given!r} is not one that gives messages: use a URL or a source")
    source: Source = given  # type: ignore[assignment]  # it has what a source has
    return source, False


def broker_for(pattern: str, given: object, settings: Settings, classifier: Classifier) -> tuple[Broker, bool]:
    """`as_broker` for the topics of a pattern. What no pattern matches need not have a broker."""
    if given is None and settings.broker is None:
        from postroom.brokers.no_broker import NoBroker

        return NoBroker(), True
    try:
        return as_broker(given, settings, classifier)
    except InvalidSetting as error:
        if given is None:
            raise
        raise InvalidSetting(f"the broker for {pattern!r}: {error}") from None


def check_broker(given: object, name: str = "broker") -> None:
    """Raise `InvalidSetting` unless it is a URL, a broker, a function or None."""
    is_broker = hasattr(given, "publish") and hasattr(given, "capabilities")
    if given is not None and not isinstance(given, str) and not is_broker and not callable(given):
        raise InvalidSetting(f"{name} = {given!r} is not a broker: give a URL, a function or a broker object")


def check_brokers(given: object) -> Mapping[str, str] | None:
    """Raise `InvalidSetting` unless it is a table of patterns and brokers; returns it in the form of the setting.

    There, `python:` stands for a broker that has no URL.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"brokers is of the type {type(given).__name__}: give a table of patterns and brokers")
    for pattern, broker in given.items():
        if broker is None:
            raise InvalidSetting(f"brokers[{pattern!r}] is None: give a URL, a broker or a function, or leave it out")
        check_broker(broker, f"brokers[{pattern!r}]")
    return {pattern: broker if isinstance(broker, str) else "python:" for pattern, broker in given.items()}


def check_default(broker: object, settings: Settings) -> None:
    """Raise `InvalidSetting` if two brokers are given for the topics that no other pattern matches."""
    if ANYTHING in settings.brokers and (broker is not None or settings.broker is not None):
        raise InvalidSetting(
            f"`broker` and the pattern {ANYTHING!r} of `brokers` are both given, and both for what no other pattern "
            "matches: leave one of them out"
        )


def open_broker(settings: Settings, classifier: Classifier = DEFAULT_CLASSIFIER) -> Broker:
    """The broker of the settings' URL. Raises `InvalidSetting` or `DriverMissing`; does not connect yet."""
    if settings.broker is None:
        raise InvalidSetting(
            "no broker is given: pass one, use --broker URL or set POSTROOM_BROKER, for example to stdout:; "
            "to run sagas without a broker, pass them, or use --app MODULE:OBJECT"
        )
    return broker_at(settings.broker, settings, classifier)


def broker_at(url: str, settings: Settings, classifier: Classifier) -> Broker:
    """The broker of a URL. Raises as `open_broker` does."""
    scheme, _, rest = url.partition(":")
    match scheme:
        case "python":
            from postroom.brokers import function

            return function.FunctionBroker(function.load(rest), settings.concurrency, classifier)
        case "stdout":
            from postroom.brokers.stdout import StdoutBroker

            return StdoutBroker()
        case "memory":
            from postroom.brokers.memory import MemoryBroker

            return MemoryBroker()
        case _ if scheme in CLIENTS:
            broker: Broker = load(CLIENTS[scheme].publisher)(url)
            return broker
        case _ if scheme in BRIDGES:
            return _bridge(scheme, rest.removeprefix("//"))
        case _:
            raise InvalidSetting(
                f"{scheme}: is not a broker that Postroom knows: use amqp://host, https://host/path, kafka://host, "
                "nats://host, redis://host, celery://module:app, python:module:function or stdout:"
            )


def _bridge(scheme: str, address: str) -> Broker:
    """The publisher for an app or a broker of a task queue or framework, or the publisher that the address names."""
    kind = load(BRIDGES[scheme])
    found = load_object(address, f"{scheme}://{address}", f"an object: write {scheme}://module:object")
    bridge: Broker = found if isinstance(found, kind) else kind(found)
    return bridge
