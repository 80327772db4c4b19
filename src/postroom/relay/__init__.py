"""The relay: claims what is in the outbox, publishes it, and settles what became of it."""

from postroom.relay.relay import Relay
from postroom.relay.report import Report

__all__ = ["Relay", "Report"]
