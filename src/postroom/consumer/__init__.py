"""Consumer: receive → inbox → handler → acknowledge."""

from postroom.consumer.consumer import Consumer

__all__ = ["Consumer"]
