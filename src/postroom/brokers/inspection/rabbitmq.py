"""Look at RabbitMQ: are the queues there, and do they survive the loss of a node."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from postroom.brokers import rabbitmq as publisher  # first: it says which extra is missing
from postroom.brokers import urls
from postroom.brokers.inspection.port import Inspector
from postroom.brokers.rabbitmq_connection import Closed, ExchangeDeclare, QueueDeclare, RabbitConnection
from postroom.errors import BrokerUnavailable
from postroom.rules.checks.brokers import BrokerFacts, Place

# isort: split
from pamqp import commands

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_FOUND, REFUSED = 404, 406
MOST_ARGUMENTS = 20
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for .*"
    r"current is (?:none|(?:the value )?'(?P<value>.*?)'(?: of type '(?P<kind>\w+)')?)$",
    re.DOTALL,
)
_OTHERWISE = {
    "durable": "it is not durable: gone when the server restarts",
    "auto_delete": "it is deleted with its last consumer",
    "exclusive": "it is deleted with the connection that made it",
    "x-queue-type": "it is a classic queue, on one node",
}
"""What a queue that differs in this is."""


class RabbitInspector(Inspector):
    """Asks for queues by declaring them passively.

    The protocol does not tell a queue's type. So a queue that exists is declared once more as a durable quorum queue:
    the server confirms it, or says what is different, and changes nothing. What does not matter is then declared as the
    queue has it.
    """

    def __init__(self, url: str) -> None:
        parsed, self._options = urls.parse(url, publisher.PORTS, publisher.RabbitOptions)
        super().__init__(parsed, self._options)

    async def facts(self, topics: Sequence[str], timeout: float) -> BrokerFacts:  # noqa: ASYNC109 - the port's
        """As the port says."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                connection = await self._connect()
                try:
                    return BrokerFacts(
                        seconds=time.monotonic() - began,
                        version=f"RabbitMQ {connection.version}",
                        places=await self._places(connection, topics),
                        max_bytes=self._options.max_bytes,
                        limit_name="max_bytes in the broker's URL",
                    )
                finally:
                    await connection.close()
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except OSError as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from error

    async def _connect(self) -> RabbitConnection:
        trouble: OSError | None = None
        tls = self._options.tls() if self.encrypted else None
        user, password = self.url.user or "guest", self.url.password or "guest"
        for host, port in self.url.hosts:
            try:
                path = unquote(self.url.path) or "/"
                return await RabbitConnection.open(host.strip("[]"), port, tls, user, password, path)
            except OSError as error:
                trouble = error
        raise trouble or OSError("no host")

    async def _places(self, connection: RabbitConnection, topics: Sequence[str]) -> list[Place]:
        if self._options.exchange:
            return [await self._exchange(connection, self._options.exchange)]
        return [await self._queue(connection, topic) for topic in topics]

    async def _exchange(self, connection: RabbitConnection, name: str) -> Place:
        title = f"exchange {name}"
        try:
            await connection.look(
                ExchangeDeclare(0, name, self._options.exchange_type, passive=True), commands.Exchange.DeclareOk
            )
        except Closed as closed:
            return self._missing(connection, title, title, closed)
        return Place(title, title, unknown="its queues cannot be seen from here: look at their type in the management")

    async def _queue(self, connection: RabbitConnection, topic: str) -> Place:
        title = f"queue {topic}"
        try:
            await connection.look(QueueDeclare(0, topic, passive=True), commands.Queue.DeclareOk)
        except Closed as closed:
            return self._missing(connection, topic, title, closed)
        arguments: dict[str, Any] = {"x-queue-type": "quorum"}
        for _ in range(MOST_ARGUMENTS):
            try:
                question = QueueDeclare(0, topic, durable=True, arguments=dict(arguments))
                await connection.look(question, commands.Queue.DeclareOk)
            except Closed as closed:
                if connection.lost:
                    raise
                different = _INEQUIVALENT.search(str(closed))
                if closed.code != REFUSED or different is None:
                    return Place(topic, title, unknown=str(closed))
                if different["name"] in _OTHERWISE:
                    return _otherwise(topic, title, different)
                arguments[different["name"]] = _value(different)
            else:
                return Place(topic, title)
        return Place(topic, title, unknown="its type cannot be told beside its other arguments")

    def _missing(self, connection: RabbitConnection, topic: str, title: str, closed: Closed) -> Place:
        if connection.lost:
            raise closed
        if closed.code != NOT_FOUND:
            return Place(topic, title, unknown=str(closed))
        return Place(topic, title) if self._options.declare else Place(topic, title, missing="it does not exist")


def _otherwise(topic: str, title: str, different: re.Match[str]) -> Place:
    """A queue that is no durable quorum queue."""
    if different["name"] == "x-queue-type" and different["value"] not in (None, "classic"):
        return Place(topic, title)  # a stream, which is replicated too
    remedy = f"make the queue {topic} anew as a quorum queue: x-queue-type=quorum"
    return Place(topic, title, weakness=_OTHERWISE[different["name"]], remedy=remedy)


def _value(different: re.Match[str]) -> str | int | bool | None:
    """An argument as the queue has it."""
    value, kind = different["value"], different["kind"]
    if value is None or kind == "longstr":
        return value
    return value == "true" if kind == "bool" else int(value) if value.lstrip("-").isdecimal() else value
