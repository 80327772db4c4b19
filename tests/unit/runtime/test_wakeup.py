from __future__ import annotations

from postroom.runtime import wakeup


def test_subscribers_are_called_until_they_unsubscribe() -> None:
    calls: list[str] = []

    def callback() -> None:
        calls.append("called")

    wakeup.subscribe(callback)
    wakeup.notify()
    wakeup.unsubscribe(callback)
    wakeup.notify()
    assert calls == ["called"]
