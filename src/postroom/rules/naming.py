"""Identifiers, header names and labels that come from outside, in a form that every database can store and compare."""

import hashlib
import json
import re

LONGEST = 255
LEDGER = "postroom-ledger"
"""Header of a message that belongs to a ledger entry: scope, key and digest, as JSON. It is never sent."""
ALL_HEADERS = "postroom-headers"
"""Header with all of the user's, as a JSON object: Debezium, which has them in one column, sends them like this."""
RESERVED_HEADERS = "postroom-"
"""Prefix of the headers that Postroom itself adds. The SQL function for producers refuses headers with it."""
REPLAY_OF = f"{RESERVED_HEADERS}replay-of"
"""Header of a message that an operator made from another one: that one's id."""
RESERVED = "postroom:"
"""Prefix of the idempotency keys that Postroom itself makes; users' keys must not start with it."""
OURS = "postroom"
"""The CloudEvents source that a relay sends by default."""
PARKED = f"{RESERVED}parked:"
SAGA_QUEUE = "saga:"
"""Prefix of the queues, which are also the topics, of sagas."""
SAGA_START, SAGA_SIGNAL = "start", "signal"
"""Types of the messages in a saga's queue."""
SAGA_ID = f"{RESERVED_HEADERS}saga-id"
SAGA_PLAN = f"{RESERVED_HEADERS}saga-plan"
SAGA_EVENT = f"{RESERVED_HEADERS}saga-event"
SAGA_TELL = f"{RESERVED_HEADERS}saga-tell"
SAGA_TOLD_BY = f"{RESERVED_HEADERS}saga-told-by"
SAGA_FORK_OF = f"{RESERVED_HEADERS}saga-fork-of"
"""Headers of these messages: the instance, its plan as JSON, an event's name, whom to tell of its end, which saga tells
of its own end, its origin."""
TWOPHASE_QUEUE = "twophase"
"""The queue, which is also the topic, of two-phase commits to recover. No routed queue can have this name."""
TWOPHASE_RECOVER = "recover"
"""The type of its messages; the aggregate is the transaction."""
_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNSTORABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def storable_id(text: str) -> str:
    """Turn a sender's id or key into one of at most 255 characters; different ids stay different.

    A text that every database can store and keep unique is returned unchanged; any other becomes a hash.
    """
    can_be_stored = 0 < len(text) <= LONGEST and not _UNSTORABLE.search(text) and not text.endswith(" ")
    return text if can_be_stored else _hash(text)


def dedup_id_of(source: str | None, id: str, topic: str) -> str:
    """What identifies a received message: its source and id, or its topic and id if it names no source.

    UUIDs sent by a relay that has no source of its own identify themselves. The result has at most 255 characters and
    differs for different messages: spaces in a source or topic are escaped, so the first space ends it.
    """
    if source == OURS and _UUID.fullmatch(id):
        return id
    place = topic if source is None else source
    escaped = place.replace("%", "%25").replace(" ", "%20")
    return storable_id(f"{' ' if source is None else ''}{escaped} {id}")


def parked_key(consumer: str, dedup_id: str) -> str:
    """The idempotency key under which a consumer parks a message with this `dedup_id`."""
    length = len(consumer)  # so that consumer a:b with id c differs from consumer a with id b:c
    rest = f"{length}:{consumer}:{dedup_id}"
    key = f"{PARKED}{rest}"
    return key if storable_id(key) == key else f"{PARKED}{_hash(rest)}"


def saga_key(name: str, id: str) -> str:
    """The idempotency key of the message that starts an instance of a saga."""
    return f"{RESERVED}saga:{name}:{id}"


def saga_signal_key(name: str, id: str, event: str, message_id: str) -> str:
    """The idempotency key of a signal that its sender identifies by a message id."""
    return f"{RESERVED}signal:{_hash(json.dumps([name, id, event, message_id]))}"


def twophase_key(tx: str, period: int) -> str:
    """The idempotency key of the message to recover a two-phase commit; it is recorded once in each period."""
    return f"{RESERVED}twophase:{tx}:{period}"


def is_saga_queue(queue: str) -> bool:
    """Whether the queue holds the instances of a saga, and signals to them."""
    return queue.startswith(SAGA_QUEUE)


def is_ledger_header(name: str) -> bool:
    """Whether anybody who ignores case, spaces and underscores would take this header for the ledger's."""
    return name.strip().casefold().replace("_", "-") == LEDGER


def storable_label(text: str) -> str | None:
    """Reduce a text for people, such as a topic or type, to what can be stored; None if nothing is left."""
    return _UNSTORABLE.sub("", text)[:LONGEST] or None


def readable(text: str) -> str:
    """Show bytes that were not UTF-8, and arrived as lone surrogates, in hexadecimal."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that do not stand for bytes
        raw = text.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "backslashreplace")


def storable_header(text: str) -> str:
    """Remove the characters from a header's value that cannot be stored."""
    return _UNSTORABLE.sub("", text)


def _hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
