"""Who comes in to the dashboard, and which requests may change something."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from postroom.errors import InvalidSetting
from postroom.web.dashboard.access import Access, Sessions, usable_token
from postroom.web.dashboard.guards import came_from_outside, why_cross_site

TOKEN = "a token that nobody guesses"  # noqa: S105 - a test's
NOW = 1_000_000.0


def request(method: str = "POST", **headers: str) -> Request:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": method, "path": "/", "headers": named, "query_string": b""})


def test_a_cookie_names_its_person_until_it_expires() -> None:
    sessions = Sessions(TOKEN)
    cookie = sessions.cookie('Ada Lövelace; x="1"', NOW + 10)
    assert sessions.name_in(cookie, NOW + 9) == 'Ada Lövelace; x="1"'
    assert sessions.name_in(cookie, NOW + 10) is None
    assert cookie.isascii()
    assert not set(cookie) & set(' ",;\\')


@pytest.mark.parametrize("spoilt", ["", ".", "a.b.c", "9999999999.YWRh", "9999999999.YWRh.", "é.é.é"])
def test_a_forged_cookie_names_nobody(spoilt: str) -> None:
    assert Sessions(TOKEN).name_in(spoilt, NOW) is None


def test_a_cookie_holds_for_its_token_and_its_text_alone() -> None:
    cookie = Sessions(TOKEN).cookie("ada", NOW + 10)
    assert Sessions(TOKEN).name_in(cookie, NOW) == "ada"
    assert Sessions("another token, as long").name_in(cookie, NOW) is None
    expires, rest = cookie.split(".", 1)
    assert Sessions(TOKEN).name_in(f"{int(expires) + 1}.{rest}", NOW) is None


def test_only_the_token_is_the_token() -> None:
    sessions = Sessions(TOKEN)
    assert sessions.is_token(f" {TOKEN}\n")
    assert not any(map(sessions.is_token, ("", TOKEN[:-1], TOKEN + "x", "ü" * 20)))
    with pytest.raises(InvalidSetting, match="fewer than 16 characters"):
        usable_token("short")
    with pytest.raises(InvalidSetting, match="name = ''"):
        Access("")


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "cross-site", "origin": "http://here"}, False),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "none"}, False),
        ({"origin": "http://here", "host": "here"}, True),
        ({"origin": "https://HERE:8443", "host": "here:8443"}, True),
        ({"origin": "http://there", "host": "here"}, False),
        ({"origin": "null", "host": "here"}, False),
        ({"origin": "http://[", "host": "here"}, False),
        ({"origin": "null"}, False),
        ({"host": "here"}, False),
    ],
)
def test_what_another_site_may_have_sent_changes_nothing(headers: dict[str, str], *, ours: bool) -> None:
    assert (why_cross_site(request(**headers)) is None) is ours


def test_a_link_on_another_site_is_told_from_a_stranger() -> None:
    assert came_from_outside(request("GET", sec_fetch_site="cross-site"))
    assert not came_from_outside(request("GET", sec_fetch_site="none"))
    assert not came_from_outside(request("POST", sec_fetch_site="cross-site"))
