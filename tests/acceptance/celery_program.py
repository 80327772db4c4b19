"""A Celery app, and its worker: ``python -m tests.acceptance.celery_program BROKER DATABASE``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from celery import Celery
from sqlalchemy import Connection, create_engine, text

from postroom import Inbox
from postroom.celery import once
from postroom.store.connections.urls import resolve

if TYPE_CHECKING:
    from datetime import datetime
    from decimal import Decimal

INSERT = text("INSERT INTO done (task_id, what) VALUES (:task_id, :what)")


def make_app(broker: str, database: str) -> Celery:
    """Its tasks write what they were called with."""
    app = Celery("shop", broker=broker, set_as_current=False)
    app.conf.task_default_queue = "shop"
    app.conf.task_routes = {"shop.audit": {"queue": "audit"}}
    app.conf.broker_connection_retry_on_startup = True
    app.conf.worker_hijack_root_logger = False
    engine = create_engine(resolve(database))

    @app.task(bind=True, name="shop.charge", shared=False)  # type: ignore[untyped-decorator]  # Celery has no types
    @once(Inbox("shop"), engine)
    def charge(self: Any, connection: Connection, order: int, *, price: Decimal, at: datetime | None = None) -> None:
        what = f"{order} {price!r} {at!r} {self.request.headers}"
        connection.execute(INSERT, {"task_id": self.request.id, "what": what})
        if price < 0 and self.request.retries == 0:  # what was written rolls back, and the mark with it
            raise self.retry(countdown=0)

    @app.task(bind=True, name="shop.audit", shared=False)  # type: ignore[untyped-decorator]  # Celery has no types
    def audit(self: Any, what: str) -> None:
        with engine.begin() as connection:
            place = self.request.delivery_info
            what = f"{what} {place['routing_key']} {place['priority']}"
            connection.execute(INSERT, {"task_id": self.request.id, "what": what})

    return app


if __name__ == "__main__":
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING")
    make_app(*sys.argv[1:]).worker_main(["worker", "--pool=solo", "--queues=shop,audit", *quiet])
