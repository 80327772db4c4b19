"""The official AsyncAPI parser, from npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.services.built import ROOT, build
from tests.services.service import Unavailable

HERE = Path(__file__).parent
ENVIRONMENT = ROOT / ".venv-asyncapi"
LOCK = HERE / "package-lock.json"


def parsed(document: str) -> Any:
    """What the parser says of a document: its `errors`, and the names of its `messages`. Skips the test without npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("NOT TESTED: AsyncAPI's parser: there is no node and npm")
    files = [HERE / name for name in ("package.json", LOCK.name, "check.mjs")]
    try:
        build(
            ENVIRONMENT,
            LOCK,
            [
                ["mkdir", "-p", ENVIRONMENT],
                ["cp", *files, ENVIRONMENT],
                [npm, "ci", "--prefix", ENVIRONMENT, "--no-audit", "--no-fund", "--silent"],
            ],
        )
    except Unavailable as reason:
        pytest.skip(f"NOT TESTED: AsyncAPI's parser: {reason}")
    run = subprocess.run(
        [node, ENVIRONMENT / "check.mjs"], input=document, capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(run.stdout)
