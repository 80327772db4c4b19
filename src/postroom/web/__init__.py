"""What speaks HTTP: ASGI applications, for any server and framework that takes one."""

from postroom.web.receiver import Receiver

__all__ = ["Receiver"]
