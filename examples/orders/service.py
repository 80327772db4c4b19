"""The service: accepts orders, each under an idempotency key, and reports their outcome."""

import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any, Literal, NamedTuple, assert_never
from urllib.parse import quote

from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import IntegrityError

from examples.orders.problems import HANDLERS, Problem
from examples.shutdown import call
from postroom import Outbox
from postroom.errors import InvalidEntry
from postroom.idempotency import (
    Conflict,
    InProgress,
    Ledger,
    Recorded,
    Replay,
    Run,
    Status,
    digest_of,
    scope_of,
)
from postroom.web import parse_key

TOPIC = "exchange.orders"
TABLE = """
CREATE TABLE orders (
    tenant VARCHAR(64) NOT NULL, idempotency_key VARCHAR(255) NOT NULL, digest CHAR(64) NOT NULL,
    symbol VARCHAR(16) NOT NULL, side VARCHAR(4) NOT NULL, quantity INTEGER NOT NULL, message_id CHAR(36) NOT NULL,
    PRIMARY KEY (tenant, idempotency_key)
)
"""
MYSQL = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
"""Otherwise MariaDB and MySQL treat keys that differ only in case as equal."""
INSERT = text(
    "INSERT INTO orders (tenant, idempotency_key, digest, symbol, side, quantity, message_id) "
    "VALUES (:tenant, :key, :digest, :symbol, :side, :quantity, :message)"
)
FIND = text("SELECT digest, message_id FROM orders WHERE tenant = :tenant AND idempotency_key = :key")
POSTGRESQL, MARIADB = "postgresql+psycopg", "mysql+pymysql"
DRIVERS = {"postgresql": POSTGRESQL, "postgres": POSTGRESQL, "mysql": MARIADB, "mariadb": MARIADB}
KEY = re.compile(r"(?!\.{1,2}\Z)[ -~]{1,64}")
"""Valid keys: visible ASCII, to be sent on in a header; and a path segment, which `.` and `..` are not."""
REFUSED = "INVALID_TARGET"
"""The adapter's code for an order that the exchange refused."""

outbox = Outbox()
ledger = Ledger()


class Order(BaseModel):
    """An order to buy or sell."""

    symbol: Annotated[str, Field(pattern="^[A-Z0-9.-]{1,16}$")]
    side: Literal["buy", "sell"]
    quantity: Annotated[int, Field(gt=0, le=1_000_000)]


class KeyedOrder(NamedTuple):
    """An order request: its tenant and key."""

    tenant: str
    key: str
    digest: str

    @property
    def place(self) -> str:
        """The URL of its outcome."""
        return f"/do/order/{quote(self.key, safe='')}"

    @property
    def scope(self) -> str:
        """Tells it apart from other tenants' orders, and from other requests."""
        return scope_of(self.tenant, "POST /do/order")


def take(connection: Connection, keyed: KeyedOrder, order: Order) -> Response:
    """Handle a POST in one transaction: key, order and message are all recorded, or none is."""
    decision = ledger.begin(connection, keyed.key, keyed.digest, scope=keyed.scope)
    match decision:
        case Run(entry):
            message = outbox.message(
                TOPIC, order, type="OrderPlaced", idempotency_key=scope_of(keyed.tenant, keyed.key), ledger=entry
            )
            row = {**keyed._asdict(), **order.model_dump(), "message": str(message.id)}
            try:
                connection.execute(INSERT, row)
            except IntegrityError:  # the ledger has forgotten the key, but we have not
                raise Problem(
                    HTTPStatus.GONE, "key-spent", "This key was used; its outcome is kept no longer."
                ) from None
            outbox.add_many(connection, [message])
            ledger.hand_over(connection, entry)
            return accepted(keyed)
        case InProgress():
            return accepted(keyed)
        case Replay(response):
            return Response(response.body, response.status, dict(response.headers))
        case Conflict():
            raise Problem(HTTPStatus.CONFLICT, "key-reused", "This key was used for another order.")
        case _:
            assert_never(decision)


def accepted(keyed: KeyedOrder) -> Response:
    """The order is accepted, and not executed yet."""
    body = {"key": keyed.key, "status": "pending"}
    return JSONResponse(body, HTTPStatus.ACCEPTED, {"location": keyed.place, "retry-after": "1"})


def outcome(connection: Connection, tenant: str, key: str) -> dict[str, Any]:
    """The outcome of an order, from the ledger."""
    found = connection.execute(FIND, {"tenant": tenant, "key": key}).one_or_none() if KEY.fullmatch(key) else None
    if found is None:
        raise Problem(HTTPStatus.NOT_FOUND, "no-order", "There is no order with this key.")
    order = {"key": key, "message": found.message_id}
    recorded = ledger.look(connection, key, scope=KeyedOrder(tenant, key, found.digest).scope)
    if recorded is not None and recorded.status is Status.IN_PROGRESS:
        return {**order, "status": "pending"}
    if recorded is None or recorded.expired or recorded.response is None:
        raise Problem(HTTPStatus.GONE, "key-spent", "The outcome of this order is kept no longer.")
    answer = json.loads(recorded.response.body)
    return {**order, "status": ended(recorded, answer), "http_status": recorded.response.status, "answer": answer}


def ended(recorded: Recorded, answer: dict[str, Any]) -> str:
    """How an order ended. It has failed only if the exchange refused it; otherwise it may have been executed.

    The last attempt is not enough to know: an exchange that fails now may have executed an earlier attempt.
    """
    if recorded.status is Status.SUCCEEDED:
        return "succeeded"
    return "failed" if answer["reason_code"] == REFUSED else "unknown"


@asynccontextmanager
async def lifespan(application: FastAPI) -> AsyncIterator[None]:
    """Keep the connections open while the service runs."""
    application.state.engine = engine_of(os.environ["POSTROOM_DATABASE"])
    yield
    application.state.engine.dispose()


app = FastAPI(title="Orders", lifespan=lifespan, exception_handlers=HANDLERS)


async def raw_body(request: Request) -> bytes:
    """The raw body, which tells whether two requests are the same."""
    return await request.body()


def key_of(sent: Annotated[list[str] | None, Header(alias="Idempotency-Key")] = None) -> str:
    """The order's key; quotes around it make no difference."""
    match sent:
        case None | []:
            raise Problem(HTTPStatus.BAD_REQUEST, "key-missing", "An order needs an Idempotency-Key.")
        case [one] if KEY.fullmatch(key := parse_key(one)):
            return key
        case _:
            raise InvalidEntry("give one key of 1 to 64 visible ASCII characters that is more than one dot or two")


Tenant = Annotated[str, Header(alias="X-Tenant", pattern="^[a-z0-9-]{1,16}$")]
"""The tenant; in a real service, authentication determines it."""


@app.post("/do/order")
def post_order(
    request: Request,
    order: Order,
    body: Annotated[bytes, Depends(raw_body)],
    key: Annotated[str, Depends(key_of)],
    tenant: Tenant = "demo",
) -> Response:
    """Accept an order, once for each key."""
    keyed = KeyedOrder(tenant, key, digest_of("POST", request.url.path, request.url.query, body))
    with request.app.state.engine.begin() as connection:
        return take(connection, keyed, order)


@app.get("/do/order/{key:path}")
def get_order(request: Request, key: str, tenant: Tenant = "demo") -> dict[str, Any]:
    """The outcome of an order: pending, succeeded with the exchange's answer, or failed or unknown with the reason."""
    with request.app.state.engine.connect() as connection:  # never committed: this only looks
        return outcome(connection, tenant, key)


def set_up(database: str) -> None:
    """Create Postroom's tables and the service's own."""
    call([sys.executable, "-m", "postroom", "init", "--database", database])
    engine = engine_of(database)
    with engine.begin() as connection:
        connection.execute(text(TABLE + (MYSQL if engine.dialect.name == "mysql" else "")))
    engine.dispose()


def engine_of(database: str) -> Engine:
    """An engine for a URL in Postroom's form: SQLAlchemy would pick other drivers than we use."""
    url = make_url(database)
    if url.get_backend_name() == "sqlite":
        return create_engine(url, connect_args={"timeout": 30})
    return create_engine(url.set(drivername=DRIVERS.get(url.drivername, url.drivername)))
