"""What every event is: a value whose fields cannot be changed."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class EventValue(msgspec.Struct, frozen=True):
    """The base of all events. A dataclass would do, but takes twenty times as long to define: they are forty."""

    hidden: ClassVar[frozenset[str]] = frozenset()
    """Fields that may quote a payload: they are not part of its text."""

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self.hidden)
        return f"{type(self).__name__}({', '.join(shown)})"
