"""Which topics a broker can have, and which are its own: a topic that somebody else chose must not reach its inside.

Each rule returns why a topic cannot be, or None; the reason follows the topic in a sentence.
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
    """For NATS. What begins with a dollar sign is the API of the server; `_INBOX` is where others wait for replies."""
    if not _SUBJECT.fullmatch(topic):
        return "is not a subject: words with dots between them, without spaces, * or >"
    if _NATS_OWN.match(topic):
        return "is the server's own: subjects that begin with $ reach its API, those with _INBOX others' replies"
    if len(topic.encode()) > LONGEST_SUBJECT:
        return f"has more than {LONGEST_SUBJECT} bytes"
    return None


@lru_cache(maxsize=_KNOWN_TOPICS)
def kafka_topic(topic: str) -> str | None:
    """For Kafka. What begins with two underscores holds its own state, `__consumer_offsets` for one."""
    if not _KAFKA_NAME.fullmatch(topic) or topic in (".", ".."):
        return "is not one that Kafka can have: at most 249 letters, digits, dots, dashes and underscores"
    return "is Kafka's own: its internal topics begin with two underscores" if topic.startswith("__") else None


@lru_cache(maxsize=_KNOWN_TOPICS)
def routing_key(topic: str) -> str | None:
    """For RabbitMQ, through an exchange: any text that fits."""
    if _SURROGATE.search(topic):
        return "holds a surrogate, which UTF-8 cannot hold"
    size = len(topic.encode())
    return None if size <= LONGEST_SHORT_STRING else f"has {size} bytes; a routing key has {LONGEST_SHORT_STRING}"


@lru_cache(maxsize=_KNOWN_TOPICS)
def queue(topic: str) -> str | None:
    """For RabbitMQ without an exchange: `amq.` names are the server's, others' reply queues among them."""
    if not topic:
        return "is empty: no queue can be called so"
    return "is the server's own: its queues begin with amq." if topic.startswith("amq.") else routing_key(topic)


@lru_cache(maxsize=_KNOWN_TOPICS)
def stream(topic: str) -> str | None:
    """For Redis: any text; where the name is that of another data structure, the server refuses it."""
    return "holds a surrogate, which UTF-8 cannot hold" if _SURROGATE.search(topic) else None


_RULES: dict[str, Rule] = {"nats": subject, "kafka": kafka_topic, "amqp": queue, "redis": stream}
_SCHEMES = {"nats+tls": "nats", "kafka+ssl": "kafka", "amqps": "amqp", "rediss": "redis"}


def rule_of(url: str | None) -> Rule | None:
    """The rule of the broker that a URL names; None where there is none, or it takes any topic."""
    scheme = (url or "").partition(":")[0]
    found = _RULES.get(_SCHEMES.get(scheme, scheme))
    if found is queue and parse_qs((url or "").partition("?")[2]).get("exchange"):
        return routing_key
    return found
