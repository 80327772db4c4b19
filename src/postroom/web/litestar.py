"""Litestar: a plugin that runs relays and consumers, and hands an outbox on the request's session to handlers.

::

    app = Litestar([order], plugins=[PostroomPlugin(relay, outbox=Outbox())])
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from litestar import di
from litestar.plugins import InitPlugin

from postroom.bound_outbox import BoundOutbox
from postroom.web.lifespan import check_runnable, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from litestar.config.app import AppConfig

    from postroom.outbox import Outbox
    from postroom.runtime.runnable import Runnable

__all__ = ["BoundOutbox", "PostroomPlugin"]


class PostroomPlugin(InitPlugin):
    """Runs relays and consumers for the application's lifespan, and provides ``outbox: BoundOutbox``.

    ``session`` names the dependency with the request's session or connection. Without ``outbox``, none is provided.
    Raises `InvalidSetting` for what is neither a relay nor a consumer.
    """

    def __init__(self, *parts: Runnable[Any], outbox: Outbox | None = None, session: str = "db_session") -> None:
        if parts or outbox is None:
            check_runnable(*parts)
        self._parts = parts
        self._outbox = outbox
        self._session = session

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the lifespan and the dependency."""
        if self._parts:
            app_config.lifespan = [*app_config.lifespan, running(*self._parts)]
        if self._outbox is not None:
            app_config.dependencies["outbox"] = di.Provide(_bound_by(self._session, self._outbox), sync_to_thread=False)
        return app_config


def _bound_by(session: str, outbox: Outbox) -> Callable[..., BoundOutbox]:
    """A function whose one parameter has the dependency's name."""

    def bound(**given: Any) -> BoundOutbox:
        return BoundOutbox(outbox, given[session])

    named: Any = getattr(di, "NamedDependency", None)  # new in Litestar 2.23
    kind = Any if named is None else named[Any]
    parameter = Parameter(session, Parameter.KEYWORD_ONLY, annotation=kind)
    bound.__signature__ = Signature([parameter], return_annotation=BoundOutbox)  # type: ignore[attr-defined]  # functions may have one
    bound.__annotations__ = {session: kind, "return": BoundOutbox}
    return bound
