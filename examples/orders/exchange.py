"""A simulated exchange that executes each order once, and has moods: slow, failing, silent, dying."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

PRICES = {"ACME": 120, "GLOBEX": 75, "INITECH": 12}
BOOK = "ORDERS_EXCHANGE_BOOK"
"""The environment variable with the file in which the exchange records what it does."""


class Mood(StrEnum):
    """How the exchange treats orders."""

    NORMAL = "normal"
    SLOW = "slow"
    """It answers after half a second."""
    FAILING = "failing"
    """It does nothing, and answers with an error."""
    SILENT = "silent"
    """It executes the order, but does not answer the first call until its mood changes; it answers a repetition."""
    DYING = "dying"
    """It executes the order, and dies before it answers."""


class Book:
    """Calls and trades, line by line in a file, so that an exchange that was restarted knows what it has done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.calls: list[str] = [line["key"] for line in lines if line["what"] == "call"]
        self.trades: dict[str, dict[str, Any]] = {
            line["key"]: line["trade"] for line in lines if line["what"] == "trade"
        }

    def call(self, key: str) -> None:
        """Record that an order was sent under this key."""
        self.calls.append(key)
        self._write({"what": "call", "key": key})

    def trade(self, key: str, symbol: str, quantity: int) -> dict[str, Any]:
        """Execute the order unless that was done under this key before; the answer is the same either way."""
        if key not in self.trades:
            price = PRICES[symbol] * quantity
            self.trades[key] = {"exchange_id": f"X-{len(self.trades) + 1:03}", "price": price}
            self._write({"what": "trade", "key": key, "trade": self.trades[key]})
        return self.trades[key]

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class Order(BaseModel):
    """An order to buy or sell."""

    symbol: str
    side: str
    quantity: int


class Exchange:
    """An exchange in some mood."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.mood = Mood.NORMAL
        self._changed = asyncio.Event()

    def change(self, mood: Mood) -> None:
        """Change the mood; waiting callers get their answer."""
        self.mood = mood
        self._changed.set()
        self._changed = asyncio.Event()

    async def carry_out(self, key: str, order: Order) -> JSONResponse:
        """Handle an order according to the mood."""
        self.book.call(key)
        if self.mood is Mood.FAILING:
            return JSONResponse({"error": "out of order"}, HTTPStatus.SERVICE_UNAVAILABLE)
        if order.symbol not in PRICES:
            return JSONResponse({"error": "no such symbol"}, HTTPStatus.UNPROCESSABLE_ENTITY)
        if self.mood is Mood.SLOW:
            await asyncio.sleep(0.5)
        trade = self.book.trade(key, order.symbol, order.quantity)
        if self.mood is Mood.SILENT and self.book.calls.count(key) == 1:
            await self._changed.wait()
        if self.mood is Mood.DYING:
            os._exit(1)
        return JSONResponse(trade)


@asynccontextmanager
async def lifespan(application: FastAPI) -> AsyncIterator[None]:
    """Open the book."""
    application.state.exchange = Exchange(Book(Path(os.environ[BOOK])))
    yield


app = FastAPI(title="Exchange", lifespan=lifespan)


@app.post("/orders")
async def orders(request: Request, order: Order, key: Annotated[str, Header(alias="Idempotency-Key")]) -> JSONResponse:
    """Execute an order, once for each key."""
    return await exchange_of(request).carry_out(key, order)


@app.put("/mood/{mood}")
async def change(request: Request, mood: Mood) -> None:
    """Change the mood, for the scenario."""
    exchange_of(request).change(mood)


@app.get("/book")
async def book(request: Request) -> dict[str, Any]:
    """The calls that the exchange received, and the trades it made."""
    book = exchange_of(request).book
    return {"calls": book.calls, "trades": book.trades}


def exchange_of(request: Request) -> Exchange:
    """The exchange of this process."""
    exchange: Exchange = request.app.state.exchange
    return exchange
