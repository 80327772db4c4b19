"""FastAPI: an outbox on the request's session, as a dependency.

::

    RequestOutbox = Annotated[BoundOutbox, Depends(outbox_on(get_session))]

    @app.post("/orders")
    def order(session: Annotated[Session, Depends(get_session)], outbox: RequestOutbox): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Depends

from postroom.bound_outbox import BoundOutbox
from postroom.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BoundOutbox", "outbox_on"]


def outbox_on(get_session: Callable[..., Any], outbox: Outbox | None = None) -> Callable[..., BoundOutbox]:
    """A dependency: the outbox, on the session or connection that another dependency gives the same request."""
    used = outbox or Outbox()

    def bound(session: Any = Depends(get_session)) -> BoundOutbox:  # noqa: B008 - as FastAPI has it
        return BoundOutbox(used, session)

    return bound
