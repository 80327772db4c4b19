from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.brokers.memory import MemoryBroker
from postroom.delivery.destination import PublishToBroker
from postroom.delivery.queue import Queue
from postroom.message import Message
from postroom.rules.backoff import RetryPolicy
from postroom.telemetry.events import HookFailed

if TYPE_CHECKING:
    from postroom.telemetry.events import Event


def test_the_policy_may_depend_on_the_message() -> None:
    patient = RetryPolicy(max_attempts=99)
    queue = Queue(
        name="default",
        destination=PublishToBroker(MemoryBroker()),
        policy=lambda message: patient if message.topic == "slow" else RetryPolicy.worker(),
    )
    assert queue.policy_for(Message.new("slow", 1)) is patient
    assert queue.policy_for(Message.new("other", 1)) == RetryPolicy.worker()


def test_the_default_policy_stands_in_for_one_that_raises() -> None:
    events: list[Event] = []

    def broken(message: Message) -> RetryPolicy:
        raise KeyError(message.topic)

    queue = Queue(name="default", destination=PublishToBroker(MemoryBroker()), policy=broken, hook=events.append)
    assert queue.policy_for(Message.new("orders", 1)) == RetryPolicy.worker()
    [event] = events
    assert isinstance(event, HookFailed)
    assert (event.name, event.reason) == ("policy", "KeyError")
    assert "test_queue.py" in event.where


def test_what_is_in_flight_is_bounded_by_batches_or_by_a_number() -> None:
    destination = PublishToBroker(MemoryBroker())
    assert Queue(name="default", destination=destination, batch=10).most_messages == 40
    assert Queue(name="default", destination=destination, batch=10, most_in_flight=20).most_messages == 20
