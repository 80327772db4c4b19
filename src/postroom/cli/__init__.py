"""The command line: thin commands over the features."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
NEW_OBJECTS = 100_000
"""So many before the collector looks for garbage. At Python's 700, that would take a sixth of the time to start."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 done, 1 failed, 2 called wrongly, 130 interrupted, 141 cut off.

    A failure is one line on standard error: no traceback, no password. Without arguments it takes the program's.
    """
    usual = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, *usual[1:])
    try:
        from postroom.cli.running import run  # inside, because Ctrl-C may also come while this loads

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        gc.set_threshold(*usual)
