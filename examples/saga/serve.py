"""Run one of the called services: ``python -m examples.saga.serve payments DATABASE PORT``."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from examples.saga.service import server

if TYPE_CHECKING:
    from examples.saga.service import Service


def main(name: str, database: str, port: str) -> None:
    """Serve until SIGTERM."""
    service: Service = importlib.import_module(f"examples.saga.{name}").SERVICE
    server(service, database, int(port)).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
