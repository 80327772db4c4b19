"""An operator at a database, who works with the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from postroom.cli import main
from postroom.store.connections.stores import Store

if TYPE_CHECKING:
    import pytest


class OperatorDesk:
    """Runs commands on a database that has Postroom's tables."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self.store = Store(url)
        self._capsys = capsys
        self("init")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def __call__(self, *arguments: str) -> str:
        """What a command prints, which must succeed."""
        code, out, err = self.ended(*arguments)
        assert (code, err) == (0, "")
        return out

    def ended(self, *arguments: str) -> tuple[int, str, str]:
        """How a command ends, and what it prints: the code, the output, the errors."""
        return self.ran(*arguments, "--database", self.url)

    def ran(self, *arguments: str) -> tuple[int, str, str]:
        """The same of a command that takes its database from elsewhere."""
        code = main(list(arguments))
        return code, *self._capsys.readouterr()

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def audit(self) -> list[tuple[str, str]]:
        """What was done, and by whom."""

        def read(connection: Any) -> list[tuple[str, str]]:
            table = self.store.names.mapping()["audit"]
            rows = connection.exec_driver_sql(f"SELECT action, actor FROM {table} ORDER BY id")
            return [tuple(row) for row in rows]

        return self.store.call(read)
