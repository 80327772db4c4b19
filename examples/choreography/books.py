"""The books of all three services side by side: what no service sees, but an auditor does."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, text

if TYPE_CHECKING:
    from collections.abc import Mapping

Row = tuple[Any, ...]
LINE = "{:<6} {:<8} {:<18} {:>6}  {:<8}  {:<5}  {}"


@dataclass(frozen=True)
class Books:
    """The contents of the three databases."""

    orders: list[Row]
    payments: list[Row]
    accounts: list[Row]
    stock: list[Row]
    reserved: list[Row]

    @classmethod
    def read(cls, databases: Mapping[str, str]) -> Books:
        """Read all three."""
        return cls(
            orders=sorted(
                select(databases["orders"], "SELECT id, customer, amount, items, status, reason FROM orders")
            ),
            payments=select(databases["payments"], "SELECT order_id, amount, status FROM payments"),
            accounts=select(databases["payments"], "SELECT customer, balance FROM accounts"),
            stock=select(databases["inventory"], "SELECT item, quantity FROM stock"),
            reserved=select(databases["inventory"], "SELECT order_id, item, quantity FROM reserved"),
        )

    @property
    def open(self) -> int:
        """Orders without an end. An order is updated last, so the other books are right by then."""
        return sum(status == "placed" for *_, status, _reason in self.orders)

    def counts(self) -> dict[str, int]:
        """The number of orders by status."""
        found: dict[str, int] = defaultdict(int)
        for *_, status, _reason in self.orders:
            found[status] += 1
        return dict(found)

    def table(self) -> str:
        """One line per order."""
        payments, reserved = self._payments(), self._reserved()
        lines = [LINE.format("order", "customer", "items", "amount", "payment", "goods", "end")]
        for order, customer, amount, items, status, reason in self.orders:
            paid = ", ".join(payments[order]) or "none"
            goods = "taken" if reserved[order] else "none"
            end = f"{status}: {reason}" if reason else status
            lines.append(LINE.format(order, customer, items, amount, paid, goods, end))
        return "\n".join(lines)

    def violations(self, before: Books) -> list[str]:
        """Find errors: orders half done, money or goods created or lost. `before`: the books before the first order."""
        payments, reserved = self._payments(), self._reserved()
        found = []
        for order, *_, items, status, _reason in self.orders:
            aside = ", ".join(reserved[order])
            if status == "placed":
                found.append(f"{order} has not ended")
            if status == "completed" and (payments[order] != ["charged"] or aside != items):
                found.append(f"{order} is completed: payments {payments[order]}, set aside: {aside or 'nothing'}")
            if status == "cancelled" and (payments[order] not in ([], ["refunded"]) or aside):
                found.append(f"{order} is cancelled: payments {payments[order]}, set aside: {aside or 'nothing'}")
        if self._money() != before._money():
            found.append(f"there was money for {before._money()}, now for {self._money()}")
        if self._goods() != before._goods():
            found.append(f"there were {before._goods()}, now {self._goods()}")
        return found

    def _payments(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for order, _amount, status in self.payments:
            found[order].append(status)
        return found

    def _reserved(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for order, item, quantity in self.reserved:
            found[order].append(f"{quantity} {item}")
        return found

    def _money(self) -> int:
        kept = sum(int(amount) for _order, amount, status in self.payments if status == "charged")
        return kept + sum(int(balance) for _customer, balance in self.accounts)

    def _goods(self) -> dict[str, int]:
        found = {item: int(quantity) for item, quantity in self.stock}
        for _order, item, quantity in self.reserved:
            found[item] += quantity
        return found


def select(database: str, statement: str) -> list[Row]:
    """The rows of a query."""
    engine = create_engine(database, connect_args={"timeout": 30} if database.startswith("sqlite") else {})
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(text(statement))]
    engine.dispose()
    return rows
