"""Celery: tasks that `Outbox.task` has recorded are published by the app's own producer, as `apply_async` does."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

from postroom.brokers.blocking import BlockingBroker
from postroom.brokers.port import Accepted, Outcome, Refused, TargetUnavailable, Unreached
from postroom.brokers.refusals import invalid_target, timed_out
from postroom.brokers.urls import client_missing
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules.failures import Failure, Reason
from postroom.tasks.calls import OPTIONS, stored_options

try:
    from amqp.exceptions import MessageNacked
    from celery import Celery
    from celery.exceptions import QueueNotFound
    from kombu.exceptions import ContentDisallowed, EncodeError, OperationalError
    from kombu.serialization import loads

    from postroom.tasks.celery import ENCODING, LIBRARY, accepted
except ImportError as error:
    raise client_missing("celery", "celery", error) from error

if TYPE_CHECKING:
    from postroom.message import Message

LEAST_SECONDS = 1.0
"""For connecting and for an answer. A shorter limit of the relay holds nevertheless: its thread comes back later."""


class CeleryBroker(BlockingBroker):
    """Publishes tasks to the broker of a Celery app, with its routes, signals and headers.

    RabbitMQ confirms each message, and a queue that is gone is declared again. The id of a task is that of its message,
    so that a task that is sent twice has the same id both times. Other messages than tasks become dead letters.
    """

    def __init__(self, app: Celery) -> None:
        if not isinstance(app, Celery):
            raise InvalidSetting(f"CeleryBroker takes a Celery app, not a {type(app).__name__}")
        super().__init__(f"celery:{app.main or 'app'}")
        self._app = app

    def connect(self, seconds: float) -> Any:
        """A connection and its producer."""
        connection = None
        try:
            connection = self._app.connection_for_write(connect_timeout=max(seconds, LEAST_SECONDS))
            connection.transport_options.update(_options(connection, max(seconds, LEAST_SECONDS)))
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=seconds)
            producer = self._app.amqp.Producer(connection, auto_declare=False)
            _ = producer.channel  # which Redis connects for
        except Exception as error:
            if connection is not None:
                connection.release()
            if isinstance(error, ValueError):  # its text may quote a password that has a / or a # in it
                problem = "broker_url cannot be read: percent-encode special characters of user and password"
                raise BrokerUnavailable(f"{self.name}: {problem}") from None
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from error
        return producer

    def send(self, line: Any, message: Message, seconds: float) -> Outcome:
        """Publish one task."""
        options = stored_options(message, LIBRARY)
        if options is None or message.type is None:
            return invalid_target(message.topic, "is not a task's: record tasks with outbox.task(…)")
        try:
            args, kwargs = loads(
                message.payload, message.content_type, options.pop(ENCODING), accept=accepted(self._app)
            )
        except ContentDisallowed:
            problem = f"the app does not accept {message.content_type}: see accept_content"
            return Refused(Reason.UNDECODABLE_PAYLOAD, problem, Failure.PERMANENT)
        except Exception as error:  # noqa: BLE001 - whatever it is, only this message is at fault; no text: it may quote it
            return Refused(Reason.UNDECODABLE_PAYLOAD, type(error).__name__, Failure.PERMANENT)
        return self._publish(line, message.type, args, kwargs, _as_sent(message, options), max(seconds, LEAST_SECONDS))

    def is_usable(self, line: Any) -> bool:
        """Whether it is still connected."""
        return bool(line.connection.connected)

    def disconnect(self, line: Any) -> None:
        """Close the connection."""
        line.connection.release()

    def drop(self, line: Any) -> None:
        """Close the connection, whether or not the server answers."""
        _drop(line.connection)

    def _publish(
        self, producer: Any, name: str, args: Any, kwargs: Any, options: dict[str, Any], seconds: float
    ) -> Outcome:
        connection = producer.connection
        try:
            self._app.send_task(name, args, kwargs, producer=producer, timeout=seconds, **options)
        except connection.channel_errors as error:
            _drop(connection)  # with what it has declared: the next task declares its queue again
            return TargetUnavailable(_why(error), by_message=True)
        except (OperationalError, OSError, *connection.connection_errors) as error:
            _drop(connection)  # an answer that comes late would be taken for that of the next task
            if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
                return timed_out(seconds)
            return Unreached(f"{self.name}: {_why(error)}")
        except Exception as error:  # noqa: BLE001 - also of a router, or of who listens to signals
            return _refusal(error)
        return Accepted(options["task_id"])


def _drop(connection: Any) -> None:
    """Close a connection without waiting for the server to say farewell, as AMQP does."""
    if connection.transport.driver_type == "amqp":
        connection.collect()
    else:
        connection.release()


def _refusal(error: Exception) -> Outcome:
    match error:
        case MessageNacked():
            return TargetUnavailable("the queue took no message: it is full, or cannot be written")
        case QueueNotFound():
            return Refused(Reason.UNROUTABLE, str(error), Failure.PERMANENT)
        case EncodeError():  # its text quotes the arguments
            return Refused(Reason.INTERNAL_ERROR, type(error).__name__, Failure.PERMANENT)
        case _:
            return Refused(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}".removesuffix(": "))


def _as_sent(message: Message, options: dict[str, Any]) -> dict[str, Any]:
    """The options for `send_task`."""
    headers: dict[str, Any] = {name: value for name, value in message.headers.items() if name != OPTIONS}
    for name in ("eta", "expires"):
        if name in options:
            options[name] = datetime.fromisoformat(options[name])
    # Workers read from the header whether to store a result. `send_task` itself is told that nobody wants it, since it
    # would listen for the result of each task from now on.
    headers |= options.pop("headers", None) or {}
    headers["ignore_result"] = bool(options.pop("ignore_result", False))
    return {
        "task_id": str(message.id),
        "mandatory": True,
        **options,
        "ignore_result": True,
        "headers": headers,
        "retry": False,
        "add_to_parent": False,
    }


def _options(connection: Any, seconds: float) -> dict[str, Any]:
    """What makes a transport confirm messages, and give up on a server that is silent."""
    match connection.transport.driver_type:
        case "amqp":
            whole = math.ceil(seconds)
            return {"confirm_publish": True, "read_timeout": whole, "write_timeout": whole}
        case "redis":
            return {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        case _:
            return {}


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
