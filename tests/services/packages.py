"""Programs that come as Debian packages: find them, or install them where that is permitted."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.services.service import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DOWNLOAD_TIMEOUT = 600  # seconds for a download


def require_programs(*names: str, packages: Sequence[str]) -> dict[str, Path]:
    """Return where the programs are. When one is missing, root on Debian installs the packages first.

    Raise `Unavailable` when the programs are not there in the end.
    """
    found = _find(names)
    if len(found) < len(names):
        apt_get = _apt_get(packages, because=f"{_listed(names, found)} not found")
        with _alone(apt_get):
            found = _find(names)  # another run may have installed them meanwhile
            if len(found) < len(names):
                _install(apt_get, packages, because=f"{_listed(names, found)} not found")
                found = _find(names)
    if len(found) < len(names):
        raise Unavailable(f"{' and '.join(packages)} installed, yet without {', '.join(set(names) - set(found))}")
    return found


def _find(names: Sequence[str]) -> dict[str, Path]:
    # Servers live in sbin, which is not on everybody's PATH.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    return {name: Path(place) for name in names if (place := shutil.which(name, path=path))}


def _listed(names: Sequence[str], found: dict[str, Path]) -> str:
    return " and ".join(name for name in names if name not in found)


def _apt_get(packages: Sequence[str], because: str) -> Path:
    apt_get = shutil.which("apt-get")
    if apt_get is None:
        raise Unavailable(f"{because}, and there is no apt-get to install it with")
    if os.geteuid() != 0:
        raise Unavailable(f"{because}; install it with: sudo apt-get install {' '.join(packages)}")
    return Path(apt_get)


@contextmanager
def _alone(apt_get: Path) -> Iterator[None]:
    """Wait for other runs and other workers of this one: `apt-get update` fails beside another."""
    with apt_get.open("rb") as program:
        fcntl.flock(program, fcntl.LOCK_EX)
        yield


def _install(apt_get: Path, packages: Sequence[str], because: str) -> None:
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        try:
            subprocess.run(
                [apt_get, "--quiet", "-o", "DPkg::Lock::Timeout=120", *command],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=DOWNLOAD_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{because}; apt-get {command[0]} takes more than {DOWNLOAD_TIMEOUT} s") from None
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip() or error.stdout.strip()).splitlines()[-1:]
            raise Unavailable(f"{because}; apt-get {command[0]} failed: {''.join(reason)}") from None
