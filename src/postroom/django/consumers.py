"""Consumers whose handlers use Django's ORM, and where they are found."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec
from asgiref.sync import async_to_sync
from django.apps import apps
from django.utils.module_loading import module_has_submodule

from postroom.consumer import Consumer as PlainConsumer
from postroom.consumer.consumer import ATTEMPTS, BATCH, DELAYS, TIMEOUT
from postroom.django.transactions import handler_transaction
from postroom.errors import InvalidSetting
from postroom.runtime.functions import is_async, load_module
from postroom.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from postroom.consumer.handlers import Function
    from postroom.consumer.run import ConsumerRun
    from postroom.rules.backoff import RetryPolicy
    from postroom.rules.failures import Classifier
    from postroom.settings import SettingsOverrides
    from postroom.sources.port import Source
    from postroom.telemetry.events import Hook

F = TypeVar("F", bound="Function")

MODULE = "postroom_handlers"
"""The module of an application in which its consumers are found."""


class Consumer(PlainConsumer):
    """A `postroom.consumer.Consumer` whose handlers run in an ``atomic`` block of Django's own connection.

    What they do through models commits together with the mark that the message was handled, or not at all. Database,
    broker and all other settings are those of ``POSTROOM``. A handler that takes a connection gets Django's. Async
    handlers run in a thread, where Django's async methods use the same connection.
    """

    def __init__(
        self,
        name: str,
        broker: str | Source | object | None = None,
        *,
        batch: int = BATCH,
        classifier: Classifier | None = None,
        hook: Hook | None = None,
        worker: str | None = None,
        **settings: Unpack[SettingsOverrides],
    ) -> None:
        super().__init__(
            name,
            broker,
            transactions=handler_transaction,
            batch=batch,
            classifier=classifier,
            hook=hook,
            worker=worker,
            **settings,
        )

    def handler(
        self,
        topic: str | None = None,
        *,
        type: str | None = None,
        attempts: int = ATTEMPTS,
        delays: Sequence[float] = DELAYS,
        timeout: float = TIMEOUT,
        policy: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """As `postroom.consumer.Consumer.handler`."""
        register = super().handler(topic, type=type, attempts=attempts, delays=delays, timeout=timeout, policy=policy)

        def register_sync(function: F) -> F:
            register(_in_thread(function) if is_async(function) else function)
            return function

        return register_sync

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[ConsumerRun]:
        # Modules are imported before a test's database is there: which one it is, is known when it runs.
        self._settings = msgspec.structs.replace(self._settings, database=Settings.load().database)
        async with super()._open() as run:
            yield run


def _in_thread(function: Any) -> Any:
    """A sync function that runs an async one. What that does with ``sync_to_async`` comes back to the same thread."""

    @wraps(function)
    def call(*given: Any) -> Any:
        return async_to_sync(function)(*given)

    return call


def __getattr__(name: str) -> Any:
    """``discovered``: the consumers of all applications, for `manage.py postroom consume`."""
    if name != "discovered":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return discover()


def discover() -> list[PlainConsumer]:
    """The consumers in ``postroom_handlers.py`` of each installed application. Raises `InvalidSetting`."""
    found: dict[int, PlainConsumer] = {}
    for config in apps.get_app_configs():
        if module_has_submodule(config.module, MODULE):
            module = load_module(f"{config.name}.{MODULE}", f"{config.name}.{MODULE}")
            found |= {id(one): one for one in vars(module).values() if isinstance(one, PlainConsumer)}
    if not found:
        raise InvalidSetting(
            f"no application has a consumer in its {MODULE}.py: write one, as in `billing = Consumer('billing')` from "
            "postroom.django, or name yours with --app MODULE:OBJECT"
        )
    names = [one.name for one in found.values()]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidSetting(f"two consumers are named {twice!r}: each would get a part of the messages; rename one")
    return list(found.values())
