"""The official AsyncAPI parser, from npm."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.services.built import ROOT, build
from tests.services.service import Unavailable

PROGRAM = Path(__file__).with_name("check.cjs")
ENVIRONMENT = ROOT / ".venv-asyncapi"
PACKAGE = "@asyncapi/parser@3.6.3"
ARCHIVE = ENVIRONMENT / "asyncapi-parser-3.6.3.tgz"
INTEGRITY = "MUC8xIUMcS2qNvqrqyx/ie0txu3d/OdIsrXs7UCzawdyR6P07gh35DpOqPz/z57s1UA3vERVpcheZYl3h8cVtw=="
"""The SHA-512 of the archive, as npm writes it into lock files."""

QUICKLY = ("--prefer-offline", "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000")
"""By default it asks whether what it has is still right, and waits for more than two minutes if nobody answers."""


def parsed(document: str) -> Any:
    """What the parser says of a document: its `errors`, and the names of its `messages`. Skips the test without npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("NOT TESTED: AsyncAPI's parser: there is no node and npm")
    try:
        build(
            ENVIRONMENT,
            Path(__file__),
            [
                ["mkdir", "-p", ENVIRONMENT],
                [npm, "pack", "--silent", *QUICKLY, "--pack-destination", ENVIRONMENT, PACKAGE],
                ["tar", "-xzf", ARCHIVE, "-C", ENVIRONMENT],
            ],
        )
    except Unavailable as reason:
        pytest.skip(f"NOT TESTED: AsyncAPI's parser: {reason}")
    assert base64.b64encode(hashlib.sha512(ARCHIVE.read_bytes()).digest()).decode() == INTEGRITY
    run = subprocess.run(
        [node, PROGRAM, ENVIRONMENT / "package" / "browser" / "index.js"],
        input=document,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(run.stdout)
