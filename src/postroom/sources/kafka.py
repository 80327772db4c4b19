"""Receive from Kafka as a member of a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.brokers import kafka as publisher
from postroom.brokers.kafka_producer import client_log
from postroom.errors import BrokerUnavailable
from postroom.sources import patterns
from postroom.sources.kafka_member import GroupMember

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.sources.port import Received

SERVER_TIMEOUT_MS = 10_000
MAX_HEARTBEAT_MS = 3000
NEW_TOPICS_MS = 30_000
"""How long until a new topic is found by its pattern."""
_SHARED = ("bootstrap.servers", "client.id", "allow.auto.create.topics", "security.protocol", "sasl.", "ssl.")


class KafkaSource:
    """Receives from the partitions that the group assigns to it, and commits up to the first gap."""

    def __init__(self, url: str, consumer: str, topics: Sequence[str]) -> None:
        self._publisher = publisher.KafkaBroker(url)
        self._options = self._publisher.options
        self.name = self._publisher.name
        self._topics = patterns.check_topics(topics)
        self._group = self._options.group or consumer
        self._member: GroupMember | None = None
        self._suspect = False
        """Whether the servers were unreachable at the last call."""

    @property
    def is_behind(self) -> bool:
        """Whether the broker may have more than was received; always true until the group has let us in."""
        return self._member is None or self._member.partitions.is_behind

    async def receive(self, most: int, seconds: float) -> Sequence[Received]:
        """Up to `most` messages. Raises `BrokerUnavailable`; unacknowledged messages come again then."""
        member = self._member or await self._open()
        if member.ended is not None:
            self._member = None
            raise BrokerUnavailable(f"{self.name}: {member.ended}")
        if self._suspect:
            try:
                await member.check()
            except BrokerUnavailable as error:
                raise BrokerUnavailable(f"{self.name}: {error}") from None
            self._suspect, member.trouble = False, None
        found = await member.receive(most, seconds)
        if member.trouble and not found:
            self._suspect = True
            member.give_all_back()
            raise BrokerUnavailable(f"{self.name}: {member.trouble}")
        return found

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Commit up to the first gap. Raises `BrokerUnavailable`."""
        if self._member is None:
            raise BrokerUnavailable(f"{self.name}: the connection is closed")
        try:
            await self._member.acknowledge(received)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from None

    async def give_back(self, received: Sequence[Received]) -> None:
        """Read again from the first of these in each partition, including what came after it."""
        if self._member is not None:
            self._member.give_back(received)

    async def close(self) -> None:
        """Leave the group."""
        member, self._member = self._member, None
        if member is not None:
            await member.close()

    async def _open(self) -> GroupMember:
        try:
            member = GroupMember(self._settings(), self._topics, client_log)
            await member.open()
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from None
        self._member = member
        self._suspect = False
        return member

    def _settings(self) -> dict[str, Any]:
        session = self._options.session_timeout_ms
        shared = self._publisher.settings()
        return {
            **{name: value for name, value in shared.items() if name.startswith(_SHARED)},
            "group.id": self._group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session,
            "heartbeat.interval.ms": min(MAX_HEARTBEAT_MS, session // 3),
            "socket.timeout.ms": SERVER_TIMEOUT_MS,
            "topic.metadata.refresh.interval.ms": NEW_TOPICS_MS,
            "enable.partition.eof": True,
        }
