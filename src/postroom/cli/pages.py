"""Print a page of a list, with how to get the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom.cli.output import on_terminal, print_json, print_table, print_text, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from postroom.admin import Page

LONGEST_CELL = 60


def short(row: object, column: str) -> str:
    """A field of a row, cut where it would fill the screen, as the text of an error may."""
    return shown(getattr(row, column))[:LONGEST_CELL]


@dataclass(frozen=True)
class PagePrinter:
    """How pages of one kind are printed."""

    nouns: str
    columns: Mapping[str, str]
    """What people are shown of a row → its title. JSON has all fields."""
    spare: Sequence[str]
    """The titles that a narrow terminal does without. Never those that other commands want."""
    cell: Callable[[Any, str], object] = short

    def print(self, page: Page[Any], *, as_json: bool) -> None:
        """Print the page, as JSON or for people."""
        from postroom.admin import as_json as jsonable

        if as_json:
            print_json(jsonable(page))
            return
        if not page:
            print_text(f"no {self.nouns}{_looked_at(page)}")
            return
        self.print_rows(page, page.next)

    def print_rows(self, rows: Iterable[Any], following: object) -> None:
        """Print rows for people; `following` is where the next page begins, if there is one."""
        cells = [[self.cell(row, column) for column in self.columns] for row in rows]
        print_table(list(self.columns.values()), cells, right=("position", "tries", "age"), spare=self.spare)
        if on_terminal() and following:
            print_text(f"Older ones: --before {following}")


def _looked_at(page: Page[Any]) -> str:
    if page.next is None or page.looked_at is None:
        return ""
    return f" among the {page.looked_at:,} that were looked at: go on with --before {page.next}"
