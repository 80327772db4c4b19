"""Environments that few tests need: built when they are needed, once for each lock file."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.services.certificates import environment_to_download
from tests.services.packages import DOWNLOAD_TIMEOUT
from tests.services.service import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]


def build(
    directory: Path, lock: Path, commands: Sequence[Sequence[str | Path]], variables: Mapping[str, str] | None = None
) -> None:
    """Run the commands, which fill the directory, unless that was done with this lock file. Raises `Unavailable`."""
    made_from = hashlib.sha256(lock.read_bytes() + str(ROOT).encode()).hexdigest()
    stamp = directory / "ready"
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another run may be at it
        if stamp.exists() and stamp.read_text() == made_from:
            return
        shutil.rmtree(directory, ignore_errors=True)
        for command in commands:
            try:
                subprocess.run(
                    command,
                    env={**environment_to_download(), **(variables or {})},
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=DOWNLOAD_TIMEOUT,
                )
            except (OSError, subprocess.SubprocessError) as error:
                reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
                raise Unavailable(f"nothing can be installed from {lock.name}: {''.join(reason)}") from None
        stamp.write_text(made_from)
