"""Postroom as a Django application.

::

    INSTALLED_APPS = ["postroom.django", ...]
    POSTROOM = {"DATABASE": "default", "BROKER": "amqp://…"}

    from postroom.django import outbox

    with transaction.atomic():
        order = Order.objects.create(...)
        outbox.add("orders.created", {"id": order.pk})

``manage.py migrate`` makes the tables, ``manage.py postroom relay`` delivers, ``manage.py postroom consume`` runs the
handlers of every ``postroom_handlers.py``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postroom.django.consumers import Consumer
    from postroom.django.current_outbox import CurrentOutbox, outbox
    from postroom.django.publishing import publishes
    from postroom.web.django import IdempotencyMiddleware

__all__ = ["Consumer", "CurrentOutbox", "IdempotencyMiddleware", "outbox", "publishes"]

_HOMES = {
    "Consumer": "postroom.django.consumers",
    "CurrentOutbox": "postroom.django.current_outbox",
    "IdempotencyMiddleware": "postroom.web.django",
    "outbox": "postroom.django.current_outbox",
    "publishes": "postroom.django.publishing",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: Django imports this package before its applications are ready."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
