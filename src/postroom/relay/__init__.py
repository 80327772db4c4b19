"""The relay: claims what is in the outbox, publishes it, and settles what became of it."""

from postroom.relay.relay import Relay, Report

__all__ = ["Relay", "Report"]
