"""Which certificates the tests trust: one, of nobody.

The world's are more than a hundred, and to read them takes 40 ms. PyMySQL does that for each connection.
"""

from __future__ import annotations

import os
from pathlib import Path

NOBODY = Path(__file__).with_name("nobody.pem")
"""Its key is lost."""
_OURS = {"SSL_CERT_FILE": str(NOBODY), "SSL_CERT_DIR": str(NOBODY.with_name("no-certificates"))}
_KEPT = "CALLERS_"


def trust_nobody() -> None:
    """Have this process and those that it starts read no other certificates, unless told to."""
    for name, ours in _OURS.items():
        os.environ.setdefault(_KEPT + name, os.environ.get(name, ""))
        os.environ[name] = ours


def environment_to_download() -> dict[str, str]:
    """The environment with the certificates of whoever runs the tests."""
    environment = {name: value for name, value in os.environ.items() if name not in _OURS}
    return environment | {name: kept for name in _OURS if (kept := environment.get(_KEPT + name))}
