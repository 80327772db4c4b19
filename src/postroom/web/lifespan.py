"""Relays and consumers inside a web application: they run as long as it does.

::

    app = FastAPI(lifespan=running(relay, consumer))
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from postroom.errors import InvalidSetting
from postroom.runtime.runnable import Runnable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]


def running(*parts: Runnable[Any], lifespan: Lifespan | None = None) -> Lifespan:
    """A lifespan for FastAPI, Starlette, Litestar or any ASGI framework that runs relays and consumers.

    They start when the application does, and it does not start if one of them cannot. When it ends, they finish what
    they are at, or give it back. ``lifespan`` is the application's own: it begins before them and ends after them, and
    what it yields is yielded. Raises `InvalidSetting` for what is neither a relay nor a consumer.
    """
    check_runnable(*parts)

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            state = None if lifespan is None else await stack.enter_async_context(lifespan(app))
            for part in parts:
                await stack.enter_async_context(part)
            yield state

    return run


def check_runnable(*parts: object) -> None:
    """Raise `InvalidSetting` unless all are relays or consumers, and none is given twice."""
    for part in parts:
        if not isinstance(part, Runnable):
            raise InvalidSetting(f"a {type(part).__name__} cannot run in an application: give relays and consumers")
    if not parts or len({id(part) for part in parts}) < len(parts):
        raise InvalidSetting("give each relay and each consumer that shall run once, and at least one")
