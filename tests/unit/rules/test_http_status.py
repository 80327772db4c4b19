"""Reason codes as HTTP statuses."""

import pytest

from postroom.rules.failures import Reason
from postroom.rules.http_status import http_status


@pytest.mark.parametrize(
    ("code", "status"),
    [("TIMEOUT", 504), ("MESSAGE_TOO_LARGE", 413), ("HTTP_404", 404), ("HTTP_503", 503), ("HTTP_200", 502), ("X", 502)],
)
def test_a_code_has_a_status(code: str, status: int) -> None:
    assert http_status(code) == status


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_of_our_own_is_an_error(reason: Reason) -> None:
    assert 400 <= http_status(reason) < 600
