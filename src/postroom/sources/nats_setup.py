"""Find or create what a NATS source needs on the server: a stream with its topics, and a durable consumer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.sources import patterns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nats.js import JetStreamContext

    from postroom.brokers.nats import NatsOptions

MOST_OUT = 65_536
"""Messages that all receivers of a consumer together may hold."""
ALL = ">"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_TOPIC = re.compile(r"[^\s>.]+(?:\.[^\s>.]+)*")


def durable_name(name: str) -> str:
    """A consumer's name for NATS: everything except letters, digits, dashes and underscores becomes an underscore."""
    return _NOT_IN_NAMES.sub("_", name)


def filters_of(topics: Iterable[str]) -> list[str]:
    """The subjects for these topics, without overlaps. A star at the end becomes `>`; elsewhere it is one token."""
    return _reduced([_subject(topic) for topic in topics])


def _subject(topic: str) -> str:
    if not _TOPIC.fullmatch(topic):
        raise InvalidSetting(f"nats: topic {topic!r} is not a subject: use no spaces and no >; * is a wildcard")
    words = patterns.whole_words("nats", topic)
    return ".".join([*words[:-1], ALL if words[-1] == patterns.STAR else words[-1]])


def _reduced(filters: Sequence[str]) -> list[str]:
    """Remove filters that others cover: the server refuses overlapping ones."""
    distinct = list(dict.fromkeys(filters))
    return [one for one in distinct if not any(other != one and covers(other, one) for other in distinct)]


def covers(wide: str, narrow: str) -> bool:
    """Whether `wide` matches every subject that `narrow` matches."""
    theirs = narrow.split(".")
    for index, token in enumerate(wide.split(".")):
        if token == ALL:
            return len(theirs) > index
        if index >= len(theirs) or theirs[index] == ALL or token not in ("*", theirs[index]):
            return False
    return len(wide.split(".")) == len(theirs)


async def find_stream(jetstream: JetStreamContext, filters: Sequence[str]) -> str:
    """The one stream with these subjects. Raises `BrokerUnavailable` if there is none, or more than one."""
    found: dict[str, str] = {}
    for subject in filters:
        try:
            found[await jetstream.find_stream_name_by_subject(subject)] = subject
        except nats.js.errors.NotFoundError:
            raise BrokerUnavailable(
                f"no stream has the subject {subject}; ?declare=true&stream=NAME&subjects=SUBJECTS creates one"
            ) from None
    if len(found) > 1:
        raise BrokerUnavailable(
            f"the topics are in several streams ({', '.join(sorted(found))}): a source receives from one of them"
        )
    [stream] = found
    return stream


async def ensure_consumer(
    jetstream: JetStreamContext, stream: str, durable: str, filters: Sequence[str], options: NatsOptions
) -> ConsumerConfig:
    """The existing durable consumer, or a new one. Raises `BrokerUnavailable` if the existing one is not suitable."""
    try:
        config: ConsumerConfig = (await jetstream.consumer_info(stream, durable)).config
    except nats.js.errors.NotFoundError:
        await _stream_there(jetstream, stream)
        return await _make(jetstream, stream, _new(durable, options), filters)
    if config.deliver_subject:
        raise BrokerUnavailable(f"the consumer {durable} of the stream {stream} is a push consumer: use a pull one")
    if config.ack_policy != AckPolicy.EXPLICIT:
        raise BrokerUnavailable(
            f"the consumer {durable} of the stream {stream} has the ack policy {config.ack_policy}: it must be explicit"
        )
    theirs = config.filter_subjects or [config.filter_subject or ALL]
    missing = [one for one in filters if not any(covers(other, one) for other in theirs)]
    if not missing:
        return config
    if not options.declare:
        raise BrokerUnavailable(
            f"the consumer {durable} of the stream {stream} does not receive {', '.join(missing)}, only "
            f"{', '.join(theirs)}: ?declare=true widens it, ?durable=… names another"
        )
    return await _make(jetstream, stream, config, _reduced([*theirs, *filters]))


async def _stream_there(jetstream: JetStreamContext, stream: str) -> None:
    try:
        await jetstream.stream_info(stream)
    except nats.js.errors.NotFoundError:
        raise BrokerUnavailable(f"there is no stream {stream}; ?declare=true&subjects=SUBJECTS creates it") from None


def _new(durable: str, options: NatsOptions) -> ConsumerConfig:
    return ConsumerConfig(
        durable_name=durable,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=options.ack_wait,
        max_ack_pending=MOST_OUT,
    )


async def _make(
    jetstream: JetStreamContext, stream: str, config: ConsumerConfig, filters: Sequence[str]
) -> ConsumerConfig:
    """Create or update the consumer. A single filter is sent in the form that servers before 2.10 understand."""
    one = filters[0] if len(filters) == 1 and filters[0] != ALL else None
    several = list(filters) if len(filters) > 1 else None
    updated: ConsumerConfig = config.evolve(filter_subject=one, filter_subjects=several)
    await jetstream.add_consumer(stream, updated)
    return updated
