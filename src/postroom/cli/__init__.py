"""The command line: thin commands over the features."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
NEW_OBJECTS = 100_000
"""So many before the collector looks for garbage. At Python's 700, that would take a sixth of the time to start."""
_USUAL = gc.get_threshold()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 done, 1 failed, 2 called wrongly, 130 interrupted, 141 cut off.

    A failure is one line on standard error: no traceback, no password. Without arguments it takes the program's.
    """
    gc.set_threshold(NEW_OBJECTS, *_USUAL[1:])
    try:
        from postroom.cli.running import run  # inside, because Ctrl-C may also come while this loads

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        collect_as_usual()


def collect_as_usual() -> None:
    """Look for garbage as often as Python does. Call it before a command runs for long.

    Otherwise thousands of large messages would stay in memory, each in the traceback of its own exception.
    """
    gc.set_threshold(*_USUAL)
