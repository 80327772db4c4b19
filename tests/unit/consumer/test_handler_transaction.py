"""A handler's transaction: what is rolled back when the delivery cannot be settled."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from postroom import RetryPolicy
from postroom.consumer.handler_transaction import HandlerCall, HandlerTransaction
from postroom.consumer.handlers import handler_of
from postroom.consumer.settlement import LeaseNotHeld
from postroom.incoming import Incoming

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroom.compose.transactions import Transactions
    from postroom.consumer.settlement import DeliverySettlement
    from postroom.inbox import Inbox

MESSAGE = Incoming(id="1", topic="orders", payload=b"{}", content_type="text/plain")


class Pretended:
    """An inbox, transactions and a settlement that write down what is done, in order."""

    consumer = "billing"

    def __init__(self, *, is_first: bool, is_held: bool) -> None:
        self.steps: list[str] = []
        self._is_first = is_first
        self._is_held = is_held

    @contextmanager
    def blocking(self) -> Iterator[object]:
        try:
            yield self
        except BaseException:
            self.steps.append("roll back")
            raise
        self.steps.append("commit")

    def first_times(self, _: object, ids: Sequence[str]) -> list[bool]:
        self.steps.append("mark")
        return [self._is_first for _ in ids]

    def is_marked(self, *_: object) -> bool:
        return True

    def run(self, _: object) -> bool:
        self.steps.append("settle")
        return self._is_held


def called(pretended: Pretended, *, may_be_committed: bool = False) -> list[bool]:
    def handle(connection: Pretended, message: Incoming) -> None:
        assert message is MESSAGE
        connection.steps.append("handle")

    handler = handler_of(handle, "orders", None, RetryPolicy(), 1)
    call = HandlerCall(handler, [MESSAGE], cast("DeliverySettlement", pretended))
    call.has_returned = may_be_committed
    parts: Any = pretended
    return HandlerTransaction(cast("Inbox", parts), cast("Transactions", parts)).run(call.again())


def test_the_settlement_is_the_last_thing_before_the_commit() -> None:
    pretended = Pretended(is_first=True, is_held=True)
    assert called(pretended) == [True]
    assert pretended.steps == ["mark", "handle", "settle", "commit"]


def test_a_duplicate_is_settled_without_a_call() -> None:
    pretended = Pretended(is_first=False, is_held=True)
    assert called(pretended) == [False]
    assert pretended.steps == ["mark", "settle", "commit"]


def test_a_lost_lease_rolls_the_effect_back() -> None:
    pretended = Pretended(is_first=True, is_held=False)
    for may_be_committed in (False, True):  # a mark that is new shows that nothing was committed
        pretended.steps.clear()
        with pytest.raises(LeaseNotHeld):
            called(pretended, may_be_committed=may_be_committed)
        assert pretended.steps == ["mark", "handle", "settle", "roll back"]


def test_a_duplicate_without_a_lease_is_our_own_only_if_a_commit_may_have_gone_unheard() -> None:
    pretended = Pretended(is_first=False, is_held=False)
    with pytest.raises(LeaseNotHeld):
        called(pretended)
    assert called(pretended, may_be_committed=True) == [False]
