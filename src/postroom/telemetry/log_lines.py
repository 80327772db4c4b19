"""Write a log's lines: as JSON, or as text for people."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

DUMB = frozenset({"dumb", "unknown"})
"""Values of TERM of terminals that know no colours, and cannot draw over what they have shown."""


def json_lines(stream: TextIO) -> Callable[[str, str, dict[str, Any]], None]:
    """Write each line as a JSON object. By hand, because structlog loads what draws on terminals, which is slow."""
    lock = Lock()

    def write(level: str, what: str, fields: dict[str, Any]) -> None:
        now = datetime.now(UTC).replace(tzinfo=None).isoformat()
        line = json.dumps({"timestamp": f"{now}Z", "level": level, "event": what, **fields}, default=repr)
        with lock:
            print(line, file=stream, flush=True)

    return write


def text_lines(stream: TextIO) -> Callable[[str, str, dict[str, Any]], None]:
    """Write each line as text: in colours, if it goes to a terminal that has them."""
    import structlog  # slow to import, and only needed here

    colours = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "").lower() not in DUMB
    logger = structlog.wrap_logger(  # configured here: the application's own configuration stays untouched
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _head_first,
            structlog.dev.ConsoleRenderer(colors=colours, sort_keys=False, repr_native_str=True),
        ],
        wrapper_class=structlog.BoundLoggerBase,
        context_class=dict,
    )

    def write(level: str, what: str, fields: dict[str, Any]) -> None:
        logger._proxy_to_logger(level, what, **fields)  # noqa: SLF001 - the level is a value here, not a method

    return write


def _head_first(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {name: line[name] for name in ("timestamp", "level", "event")} | dict(line)
