"""Which topics a broker accepts, and which it reserves: a topic that others choose must not reach its internals.

Each rule returns what is wrong with a topic, to follow the topic in a sentence, or None.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import parse_qs

Rule = Callable[[str], str | None]

LONGEST_SUBJECT = 1024
LONGEST_SHORT_STRING = 255
_SUBJECT = re.compile(r"[^\s*>.\x00-\x1f\x7f\ud800-\udfff]+(?:\.[^\s*>.\x00-\x1f\x7f\ud800-\udfff]+)*")
_NATS_OWN = re.compile(r"\$|_INBOX|(?:_R_|_GR_)(?:\.|$)")
_KAFKA_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_KNOWN_TOPICS = 4096


@lru_cache(maxsize=_KNOWN_TOPICS)
def subject(topic: str) -> str | None:
    """For NATS. Subjects that start with `$` are the server's API; `_INBOX` is where clients wait for replies."""
    if not _SUBJECT.fullmatch(topic):
        return "is not a subject: use words separated by dots, without spaces, * or >"
    if _NATS_OWN.match(topic):
        return "is reserved by the server: subjects that start with $ reach its API, those with _INBOX others' replies"
    if len(topic.encode()) > LONGEST_SUBJECT:
        return f"has more than {LONGEST_SUBJECT} bytes"
    return None


@lru_cache(maxsize=_KNOWN_TOPICS)
def kafka_topic(topic: str) -> str | None:
    """For Kafka. Topics that start with two underscores hold its own state, such as `__consumer_offsets`."""
    if not _KAFKA_NAME.fullmatch(topic) or topic in (".", ".."):
        return "is not a Kafka topic: use at most 249 letters, digits, dots, dashes and underscores"
    return "is reserved by Kafka: its internal topics start with two underscores" if topic.startswith("__") else None


@lru_cache(maxsize=_KNOWN_TOPICS)
def routing_key(topic: str) -> str | None:
    """For RabbitMQ, through an exchange: any text that fits."""
    if _SURROGATE.search(topic):
        return "holds a surrogate, which UTF-8 cannot hold"
    size = len(topic.encode())
    return (
        None if size <= LONGEST_SHORT_STRING else f"has {size} bytes; routing keys have at most {LONGEST_SHORT_STRING}"
    )


@lru_cache(maxsize=_KNOWN_TOPICS)
def queue(topic: str) -> str | None:
    """For RabbitMQ without an exchange. Names with `amq.` are reserved: they include the reply queues of others."""
    if not topic:
        return "is empty: a queue needs a name"
    return "is reserved by the server: its queues start with amq." if topic.startswith("amq.") else routing_key(topic)


@lru_cache(maxsize=_KNOWN_TOPICS)
def stream(topic: str) -> str | None:
    """For Redis: any text. If the key holds another data type, the server refuses the message."""
    return "holds a surrogate, which UTF-8 cannot hold" if _SURROGATE.search(topic) else None


_RULES: dict[str, Rule] = {"nats": subject, "kafka": kafka_topic, "amqp": queue, "redis": stream}
_SCHEMES = {"nats+tls": "nats", "kafka+ssl": "kafka", "amqps": "amqp", "rediss": "redis"}


def rule_of(url: str | None) -> Rule | None:
    """The rule for the broker at a URL; None if there is no broker or it accepts any topic."""
    scheme = (url or "").partition(":")[0]
    found = _RULES.get(_SCHEMES.get(scheme, scheme))
    if found is queue and parse_qs((url or "").partition("?")[2]).get("exchange"):
        return routing_key
    return found
