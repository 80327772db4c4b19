"""Dramatiq: messages to actors that `Outbox.task` has recorded are enqueued by a Dramatiq broker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from postroom.brokers.blocking import BlockingBroker
from postroom.brokers.port import Accepted, Outcome, Refused, Unreached
from postroom.brokers.refusals import invalid_target
from postroom.brokers.urls import client_missing
from postroom.errors import InvalidSetting
from postroom.rules.failures import Failure, Reason
from postroom.tasks.calls import stored_options

try:
    import dramatiq

    from postroom.tasks.dramatiq import LIBRARY, QUEUE
except ImportError as error:
    raise client_missing("dramatiq", "dramatiq", error) from error

if TYPE_CHECKING:
    from postroom.message import Message

_UNREACHED = frozenset({"BrokerConnectionError", "ConnectionError", "AMQPConnectionError", "TimeoutError"})
"""Names of the clients' errors, and of their bases, that say that the server is not there."""


class DramatiqBroker(BlockingBroker):
    """Enqueues messages to actors with a Dramatiq broker, and so with its middleware.

    The message's id is that of the outbox's message, so that one that is sent twice has the same id both times. With
    RabbitMQ, make Dramatiq's broker with ``confirm_delivery=True``: without it, nothing says that a message arrived.
    Other messages become dead letters.
    """

    def __init__(self, broker: dramatiq.Broker) -> None:
        if not isinstance(broker, dramatiq.Broker):
            raise InvalidSetting(f"DramatiqBroker takes a Dramatiq broker, not a {type(broker).__name__}")
        if getattr(broker, "confirm_delivery", True) is False:
            raise InvalidSetting(
                "DramatiqBroker: make Dramatiq's RabbitmqBroker with confirm_delivery=True, or messages may be lost"
            )
        super().__init__(f"dramatiq:{type(broker).__name__}")
        self._broker = broker
        self._declaring = threading.Lock()

    def connect(self, seconds: float) -> Any:
        """Nothing to do: Dramatiq's brokers connect by themselves."""
        del seconds
        return self._broker

    def is_usable(self, line: Any) -> bool:
        """Always: they also reconnect by themselves."""
        del line
        return True

    def disconnect(self, line: Any) -> None:
        """Nothing to do: the broker is the user's."""

    def send(self, line: Any, message: Message, seconds: float) -> Outcome:
        """Enqueue one message."""
        del seconds
        options = stored_options(message, LIBRARY)
        if options is None or message.type is None or message.payload is None:
            return invalid_target(message.topic, "is not an actor's: record messages to actors with outbox.task(…)")
        try:
            arguments: Any = dramatiq.get_encoder().decode(message.payload)
            call: Any = dramatiq.Message(
                queue_name=options[QUEUE],
                actor_name=message.type,
                args=tuple(arguments["args"]),
                kwargs=arguments["kwargs"],
                options=options["options"],
                message_id=str(message.id),
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, only this message is at fault; no text: it may quote it
            return Refused(Reason.UNDECODABLE_PAYLOAD, type(error).__name__, Failure.PERMANENT)
        try:
            with self._declaring:  # which Dramatiq does not expect from two threads
                line.declare_queue(call.queue_name)  # which needs no actor: the relay has none
            line.enqueue(call)
        except Exception as error:  # noqa: BLE001 - of the client, or of middleware
            names = {kind.__name__ for kind in type(error).__mro__}
            if isinstance(error, OSError) or names & _UNREACHED:
                return Unreached(f"{self.name}: {error}")
            return Refused(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}".removesuffix(": "))
        return Accepted(call.message_id)
