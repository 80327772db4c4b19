"""Run the unit tests on every supported Python of this machine but the project's own.

Each version gets an environment of its own (`.venv-3.12`, …), built from the lock and kept for the next run; with
`--build`, that is all that is done.
A version that the machine does not have is named; it is not a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "scripts" / "environment.sh"
# An environment is as good as what it was made from.
SOURCES = (ROOT / "requirements.lock", ROOT / "pyproject.toml", BUILD)


def main() -> int:
    """Return 0 when the unit tests pass on each version that is there, or its environment is ready for them."""
    only_build = sys.argv[1:] == ["--build"]
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    failed = []
    runs: dict[str, subprocess.Popen[str]] = {}
    for version in SUPPORTED:
        if version == own:
            continue
        interpreter = find_interpreter(version)
        if interpreter is None:
            print(f"Python {version}: NOT RUN, this machine has none", flush=True)
            continue
        print(f"Python {version}: {interpreter}", flush=True)
        environment = ROOT / f".venv-{version}"
        if not (is_ready(environment) or build(environment, interpreter)):
            failed.append(version)
        elif not only_build:
            runs[version] = start_unit_tests(environment)
    failed += [version for version, run in runs.items() if not passed(version, run)]
    if failed:
        print(f"{'building' if only_build else 'unit tests'} failed on Python {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def find_interpreter(version: str) -> Path | None:
    """Return an interpreter of exactly this version that runs."""
    return next((path for path in candidates(version) if runs_as(path, version)), None)


def candidates(version: str) -> list[Path]:
    """Return where the version may be: on PATH, or installed by pyenv or uv but not switched on."""
    name = f"python{version}"
    directories = [Path(directory) for directory in os.get_exec_path()]
    roots = [
        *(directory.parent / "versions" for directory in directories if directory.name == "shims"),
        Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local/share/uv/python"),
    ]
    on_path = [directory / name for directory in directories]
    kept = [path for root in roots for path in sorted(root.glob(f"*{version}*/bin/{name}"))]
    return [path for path in (*on_path, *kept) if path.is_file()]


def runs_as(interpreter: Path, version: str) -> bool:
    """Ask the interpreter itself, because a shim on PATH exists for versions that do not run."""
    question = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run([interpreter, "-c", question], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.stdout.strip() == version


def start_unit_tests(environment: Path) -> subprocess.Popen[str]:
    """Start the unit tests in a version's environment, beside those of the others.

    Without the searches through all states of a model, which find the same on every Python, and with fewer examples.
    """
    # No cache: "what failed last" is a matter of the main run.
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "fewer examples"]
    pytest += ["--ignore-glob", "*_search.py", "tests/unit"]
    command = [str(environment / "bin" / "python"), *pytest]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def passed(version: str, run: subprocess.Popen[str]) -> bool:
    """Wait for the tests of a version, and print what they say."""
    said, _ = run.communicate()
    print(f"Python {version}:\n{said}", flush=True)
    return run.returncode == 0


def build(environment: Path, interpreter: Path) -> bool:
    """Build the environment; a stamp written last says that it is complete."""
    if not runs_as(environment / "bin" / "python", environment.name.removeprefix(".venv-")):
        shutil.rmtree(environment, ignore_errors=True)
    stamp(environment).unlink(missing_ok=True)
    if subprocess.run([BUILD, environment, interpreter], cwd=ROOT, check=False).returncode != 0:
        return False
    stamp(environment).write_text(str(ROOT))
    return True


def is_ready(environment: Path) -> bool:
    """Say whether the environment was built here and from the present lock."""
    mark = stamp(environment)
    if not mark.exists() or mark.read_text() != str(ROOT):
        return False
    return all(mark.stat().st_mtime >= source.stat().st_mtime for source in SOURCES)


def stamp(environment: Path) -> Path:
    """Return the file that says what the environment was built for."""
    return environment / "ready"


if __name__ == "__main__":
    sys.exit(main())
