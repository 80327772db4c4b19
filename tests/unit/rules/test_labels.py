"""Topics as labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.labels import OTHER, bounded, without_ids


@pytest.mark.parametrize(
    ("topic", "label"),
    [
        ("orders.created", "orders.created"),
        ("orders.v2", "orders.v2"),
        ("orders.42.created", "orders.*.created"),
        ("orders/42", "orders/*"),
        ("order_42", "order_*"),
        ("orders.6fa459ea-ee8a-3ca4-894e-db77e160355e", "orders.*"),
        ("orders.6FA459EAEE8A3CA4894EDB77E160355E.paid", "orders.*.paid"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "*"),
        ("internationalisation.changed", "internationalisation.changed"),
        ("заказы.создан", "заказы.создан"),
        ("", ""),
    ],
)
def test_ids_are_left_out(topic: str, label: str) -> None:
    assert without_ids(topic) == label


@given(st.text(max_size=255))
def test_a_label_has_no_ids_left(topic: str) -> None:
    assert without_ids(without_ids(topic)) == without_ids(topic)


@given(st.lists(st.text(max_size=8)), st.integers(0, 5))
def test_labels_are_never_many(values: list[str], most: int) -> None:
    known: set[str] = set()
    for value in values:
        label = bounded(value, known, most)
        assert label in (value, OTHER)
        if label == value:
            known.add(label)
    assert len(known - {OTHER}) <= most
    assert all(bounded(value, known, most) == value for value in known)
