from __future__ import annotations

import pytest

from postroom.store.connections.urls import shown


@pytest.mark.parametrize(
    ("url", "as_shown"),
    [
        ("postgresql://u:hunter2@db:5432/shop", "postgresql://u:***@db:5432/shop"),
        ("postgresql://u@/shop?host=/run/pg&port=5433", "postgresql://u@/shop?host=/run/pg&port=5433"),
        ("postgresql://db/shop?sslmode=require&passwrd=hunter2", "postgresql://db/shop?passwrd=***&sslmode=require"),
        ("mysql://db/shop?unix_socket=/run/my&nosuch=hunter2", "mysql://db/shop?nosuch=***&unix_socket=/run/my"),
        ("postgresql://db/shop?options=-c%20a%3Dhunter2", "postgresql://db/shop?options=***"),
    ],
)
def test_R_1_of_options_that_are_not_known_to_be_harmless_only_the_names_are_shown(url: str, as_shown: str) -> None:
    assert shown(url) == as_shown
