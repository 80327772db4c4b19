"""Serializers: how the payloads of typed events are encoded, if not as JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Iterable


class PayloadSchema(NamedTuple):
    """A schema as an AsyncAPI document has it."""

    format: str
    """AsyncAPI's ``schemaFormat``."""
    schema: Any
    comparable: Any = None
    """The same for `postroom events check`, where the schema itself is a text; None: the schema."""


class Serializer(ABC):
    """Encodes and decodes events. Subclasses must be safe to use from several threads at once.

    A message whose content type is JSON's is decoded as JSON whatever the serializer of its event is, so that messages
    that are on their way survive the change to another format, and back.
    """

    content_type: str
    """Of the messages that it encodes."""

    @abstractmethod
    def encode(self, value: Any, kind: type[Any]) -> bytes:
        """The payload of an event of class ``kind``. ``value`` is the event, or what a mask made of it.

        Raises `PayloadNotEncodable`. Errors must not quote values.
        """

    @abstractmethod
    def decode(self, payload: bytes | None, kind: type[Any]) -> Any:
        """The event that a payload holds, as an object of the class. Raises `PayloadNotDecodable`."""

    def decode_plain(self, payload: bytes | None, kind: type[Any]) -> Any:
        """What an older payload holds, as dicts, lists and values, for upcasters. Raises `PayloadNotDecodable`."""
        raise NotImplementedError(f"{type(self).__name__} has no decode_plain, which upcasters of {kind.__name__} need")

    def decode_json(self, payload: bytes | None, kind: type[Any]) -> Any:
        """The event that a JSON payload holds. Raises `PayloadNotDecodable`."""
        return decode(payload, kind)

    def from_plain(self, data: Any, kind: type[Any]) -> Any:
        """The event that upcasters made. Raises `PayloadNotDecodable`."""
        raise NotImplementedError(f"{type(self).__name__} has no from_plain, which upcasters of {kind.__name__} need")

    def is_prepared(self, kind: type[Any]) -> bool:  # noqa: ARG002 - for subclasses
        """Whether events of the class can be encoded without a call over the network."""
        return True

    def prepare(self, kind: type[Any]) -> None:  # noqa: B027 - most have nothing to prepare
        """Do now what encoding events of the class needs of the network. Raises `RegistryUnavailable`."""

    def lacks(self, payload: bytes | None) -> bool:  # noqa: ARG002 - for subclasses
        """Whether decoding the payload would need a call over the network."""
        return False

    def fetch(self, payloads: Iterable[bytes | None]) -> None:  # noqa: B027 - as prepare
        """Get what decoding these payloads needs. What cannot be had is left for `decode` to raise, at once."""

    def schema(self, kind: type[Any]) -> PayloadSchema | None:  # noqa: ARG002 - for subclasses
        """The schema for AsyncAPI documents; None if it is the class's JSON Schema."""
        return None
