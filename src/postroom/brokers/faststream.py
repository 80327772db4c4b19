"""FastStream: messages are published by a FastStream broker, with its middlewares and settings."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postroom.brokers.cloudevents import AMQP, CONTENT_TYPE, KAFKA, NATS, REDIS, Envelope, HeaderFormat
from postroom.brokers.connecting import CLOSE_TIMEOUT, check_time_left
from postroom.brokers.port import NOT_SENT, Accepted, Capabilities, Outcome, Refused, TargetUnavailable, Unreached
from postroom.brokers.refusals import timed_out, unsendable
from postroom.brokers.urls import client_missing
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules.failures import Reason
from postroom.rules.naming import OURS
from postroom.rules.ordering import places_by_key

try:
    import faststream as _  # noqa: F401 - only to say what is missing
except ImportError as error:
    raise client_missing("faststream", "faststream", error) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroom.message import Message

FORMATS = {"confluent": KAFKA, "kafka": KAFKA, "nats": NATS, "rabbit": AMQP, "redis": REDIS}
"""FastStream's packages of brokers, and how headers are named there: as this project's own publishers name them."""
_PLACES = {"confluent": "topic", "kafka": "topic", "nats": "subject", "rabbit": "queue", "redis": "stream"}
_OTHER_PLACES = {"rabbit": ("queue", "exchange", "routing_key"), "redis": ("stream", "channel", "list")}
"""Where a message goes to its topic unless one of these says otherwise."""
_UNREACHED = frozenset(
    {
        *("ConnectionError", "ConnectionClosedError", "ConnectionDrainingError", "ConnectionReconnectingError"),
        *("NoServersError", "OutboundBufferLimitError", "StaleConnectionError", "KafkaConnectionError"),
        *("ChannelInvalidStateError", "ConnectionClosed"),
    }
)
"""Names of the clients' errors, and of their bases, that say that the server is not there."""
_NO_PLACE = frozenset({"NoStreamResponseError", "DeliveryError", "ChannelClosed", "UnknownTopicOrPartitionError"})
"""Those that say that the server has no place for the message."""
IN_FLIGHT = 64
"""Messages of a batch that are on their way at the same time. Those of one key follow one another."""


class FastStreamBroker:
    """Publishes each message with a FastStream broker of Kafka, NATS, RabbitMQ or Redis, to where its topic says.

    That is the topic, subject, queue or stream of this name. ``options`` are given to each call of FastStream's
    ``publish``, such as ``exchange=…``; ``options_of(message)`` returns those that differ from message to message. NATS
    needs ``stream=…``, since a message that no stream keeps is lost if nobody listens. The headers are those of this
    project's own publishers, so that an `InboxMiddleware` recognises repetitions.

    If FastStream's broker is not connected yet, it is connected here, and `close` closes it.
    """

    capabilities = Capabilities(ordered=True)

    def __init__(
        self,
        broker: Any,
        options_of: Callable[[Message], Mapping[str, Any]] | None = None,
        *,
        source: str = OURS,
        **options: Any,
    ) -> None:
        self._kind = kind_of(broker)
        if self._kind is None or not hasattr(broker, "publish"):
            raise InvalidSetting(
                f"FastStreamBroker takes a FastStream broker of Kafka, NATS, RabbitMQ or Redis, not a "
                f"{type(broker).__name__}"
            )
        if self._kind == "nats" and options_of is None and "stream" not in options:
            raise InvalidSetting(
                "FastStreamBroker: name the JetStream stream that keeps the messages, as in stream='orders': without "
                "one they would be lost if nobody listens"
            )
        self.name = f"faststream:{self._kind}"
        self._broker = broker
        self._options_of = options_of
        self._options = options
        self._format: HeaderFormat = FORMATS[self._kind]
        self._envelope = Envelope(self._format, source)
        self._connected = False
        self._is_ours = False
        self._connecting = asyncio.Lock()

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Publish the messages, those of one key one after another. Raises `BrokerUnavailable`."""
        deadline = asyncio.get_running_loop().time() + timeout
        await self._connect(deadline, timeout)
        outcomes: list[Outcome] = [NOT_SENT] * len(messages)
        places = asyncio.Semaphore(IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            for indexes in places_by_key([message.key for message in messages]):
                group.create_task(self._publish_in_order(messages, indexes, outcomes, places, deadline, timeout))
        if any(isinstance(one, Unreached) for one in outcomes):
            await self._disconnect()
        return outcomes

    async def close(self) -> None:
        """Close FastStream's broker if it was connected here."""
        await self._disconnect()

    async def _connect(self, deadline: float, timeout: float) -> None:  # noqa: ASYNC109 - for the error
        if self._connected:
            return
        try:
            async with asyncio.timeout_at(deadline), self._connecting:
                if not self._connected:
                    self._is_ours = getattr(self._broker, "_connection", None) is None
                    await self._broker.connect()
                    self._connected = True
        except Exception as error:
            await self._disconnect()
            reason = f"no connection within {timeout:g} s" if isinstance(error, TimeoutError) else _why(error)
            raise BrokerUnavailable(f"{self.name}: {reason}") from error
        check_time_left(self.name, deadline, timeout)

    async def _disconnect(self) -> None:
        """Give up a connection of ours: some clients never come back by themselves."""
        self._connected = False
        if self._is_ours:
            with suppress(Exception):  # nobody needs it any more
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self._broker.stop()

    async def _publish_in_order(
        self,
        messages: Sequence[Message],
        indexes: Sequence[int],
        outcomes: list[Outcome],
        places: asyncio.Semaphore,
        deadline: float,
        timeout: float,  # noqa: ASYNC109 - for the error
    ) -> None:
        for index in indexes:
            async with places:
                if asyncio.get_running_loop().time() >= deadline:
                    return
                outcomes[index] = await self._publish_one(messages[index], deadline, timeout)
            if not isinstance(outcomes[index], Accepted):
                return

    async def _publish_one(self, message: Message, deadline: float, timeout: float) -> Outcome:  # noqa: ASYNC109 - as above
        try:
            arguments = self._arguments(message)
        except Exception as error:  # noqa: BLE001 - whatever it is, only this message is at fault
            return unsendable(error)
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._broker.publish(message.payload, **arguments)
        except TimeoutError:
            return timed_out(timeout)
        except Exception as error:  # noqa: BLE001 - of one of many clients
            return _outcome(error)
        if self._kind == "rabbit" and answer is not None and type(answer).__name__ != "Ack":
            return TargetUnavailable("no queue took the message", by_message=True)
        return Accepted(_place(answer))

    def _arguments(self, message: Message) -> dict[str, Any]:
        arguments: dict[str, Any] = {**self._options, **(self._options_of(message) if self._options_of else {})}
        sealed, _ = self._envelope.seal(message)
        headers = arguments["headers"] = sealed | (arguments.get("headers") or {})
        name = str(message.id)
        arguments.setdefault("correlation_id", name)
        match self._kind:
            case "rabbit":
                arguments = {
                    "persist": True,
                    "message_id": name,
                    "content_type": headers.pop(CONTENT_TYPE, None),
                    **arguments,
                }
            case "nats":
                headers.setdefault("Nats-Msg-Id", name)
            case "kafka" | "confluent" if message.key is not None:
                arguments.setdefault("key", message.key.encode())
        others = _OTHER_PLACES.get(self._kind or "", ())
        if not any(place in arguments for place in others):
            arguments.setdefault(_PLACES[self._kind or ""], message.topic)
        elif self._kind == "rabbit":
            arguments.setdefault("routing_key", message.topic)
        return arguments


def kind_of(value: object) -> str | None:
    """Which of FastStream's packages an object is of."""
    for kind in type(value).__mro__:
        package, _, rest = kind.__module__.partition(".")
        name = rest.partition(".")[0]
        if package == "faststream" and name in FORMATS:
            return name
    return None


def _outcome(error: Exception) -> Outcome:
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, OSError) or names & _UNREACHED:
        return Unreached(_why(error))
    if names & _NO_PLACE:
        return TargetUnavailable(_why(error), by_message=True)
    return Refused(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}".removesuffix(": "))


def _place(answer: Any) -> str | None:
    """Where the message is stored, as far as the client says."""
    if isinstance(answer, bytes):
        return answer.decode(errors="replace")
    sequence = getattr(answer, "seq", None) or getattr(answer, "offset", None)
    return None if sequence is None or callable(sequence) else str(sequence)


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
