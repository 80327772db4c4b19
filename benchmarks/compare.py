"""A benchmark on a git revision and on the working tree, in turns: what a change gave.

``python -m benchmarks compare REVISION [--rounds N] [NAME [OPTION …]]``. Runs today's benchmark (`drain`, if none is
named), each time in a new process, with `src` as it was at the revision and as it is now. Prints the medians of all
figures, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.rounds import RESULTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parent.parent
SIDES = ("before", "now")


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare")
    parser.add_argument("revision", help="what to compare with: a commit, a branch, HEAD~1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "benchmark", nargs=argparse.REMAINDER, metavar="NAME [OPTION …]", help="drain, if none is given"
    )
    options = parser.parse_args(arguments)
    found: dict[str, dict[str, list[float]]] = {side: defaultdict(list) for side in SIDES}
    with TemporaryDirectory(prefix="postroom-compare-") as directory:
        sources = dict(zip(SIDES, (_checked_out(options.revision, Path(directory)), ROOT / "src"), strict=True))
        for number in range(1, options.rounds + 1):
            for side in SIDES:
                print(f"round {number} of {options.rounds}: {side}", file=sys.stderr)
                for name, value in _run(options.benchmark or ["drain"], sources[side], Path(directory)):
                    found[side][name].append(value)
    _show(options.revision, found)


def _checked_out(revision: str, directory: Path) -> Path:
    """The package as it was."""
    archive = directory / "src.tar"
    git = shutil.which("git") or sys.exit("compare: there is no git")
    subprocess.run([git, "archive", "--output", archive, "--end-of-options", revision, "src"], cwd=ROOT, check=True)
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")
    return directory / "src"


def _run(benchmark: Sequence[str], source: Path, directory: Path) -> Iterator[tuple[str, float]]:
    """Run a benchmark with this package; yields its figures."""
    results = directory / "results"
    results.write_text("")
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", RESULTS: str(results)}
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", *benchmark],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if run.returncode:
        sys.exit(f"compare: {' '.join(benchmark)} failed with {source}")
    for line in results.read_text().splitlines():
        yield from json.loads(line).items()


def _show(revision: str, found: dict[str, dict[str, list[float]]]) -> None:
    print(f"\n{'':<64} {revision[:12]:>12} {'now':>12} {'ratio':>7}")
    for name, values in found["now"].items():
        now = median(values)
        if name not in found["before"]:
            print(f"{name:<64} {'':>12} {now:>12,.1f}")
            continue
        before = median(found["before"][name])
        print(f"{name:<64} {before:>12,.1f} {now:>12,.1f} {now / before if before else float('nan'):>7.2f}")
