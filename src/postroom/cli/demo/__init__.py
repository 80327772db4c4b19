"""``postroom demo``: Postroom at work while things break, for someone who has never heard of an outbox."""

from postroom.cli.demo.command import demo

__all__ = ["demo"]
