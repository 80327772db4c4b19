"""The command line: thin commands over the features."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 done, 1 failed, 2 called wrongly, 130 interrupted, 141 cut off.

    A failure is one line on standard error: no traceback, no password. Without arguments it takes the program's.
    """
    try:
        from postroom.cli.running import run  # inside, because Ctrl-C may also come while this loads

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
