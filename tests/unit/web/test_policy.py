"""What is made of a request before it runs: its identity, whatever it looks like."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import InvalidSetting
from postroom.web.idempotency.options import Options
from postroom.web.idempotency.policy import Policy
from postroom.web.idempotency.problems import RequestRefused
from postroom.web.idempotency.sender import _warn_of_cookies, _warn_of_nobody, _warn_of_signatures
from postroom.web.requests import Request

ANYTHING = st.text(st.characters(exclude_categories=()), max_size=400)


def request(path: str = "/orders", *headers: tuple[str, str], route: str = "") -> Request:
    return Request("POST", path, "/orders", "", (("idempotency-key", "k"), *headers), None, lambda: route)


def everyone(_request: Request) -> str:
    return ""


def scope_of(policy: Policy, asked: Request) -> str:
    found = policy.candidate(asked)
    assert found is not None
    entry = policy.entry(found, b"")
    assert entry is not None
    return entry.scope


def policy(**options: Any) -> Policy:
    return Policy(Options(**options))


def test_the_operation_is_the_pattern_else_the_route_else_the_path() -> None:
    asked = request("/orders/7", route="/orders/{id}")
    assert scope_of(policy(scope=everyone, optional=["/orders/{number}"]), asked) == "/POST %2Forders%2F{number}"
    assert scope_of(policy(scope=everyone), asked) == "/POST %2Forders%2F{id}"
    assert scope_of(policy(scope=everyone), request("/orders/7")) == "/POST %2Forders%2F7"
    assert scope_of(policy(scope=everyone, operation=lambda _: "order"), asked) == "/order"


def test_the_tenant_is_a_hash_of_the_credentials_unless_told_otherwise() -> None:
    one, other = (scope_of(policy(), request("/", ("authorization", f"Bearer {who}"))) for who in "ab")
    assert one != other
    assert "Bearer" not in one + other
    assert scope_of(policy(scope=lambda _: "acme"), request("/", ("authorization", "x"))) == "acme/POST %2F"


@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_whatever_tenant_and_operation_are_they_make_a_scope_of_their_own(
    tenant: str, operation: str, other_tenant: str, other_operation: str
) -> None:
    one = scope_of(policy(scope=lambda _: tenant, operation=lambda _: operation), request())
    other = scope_of(policy(scope=lambda _: other_tenant, operation=lambda _: other_operation), request())
    assert (one == other) is ((tenant, operation) == (other_tenant, other_operation))


@pytest.mark.parametrize("length", ["9" * 30, "x", "-1", "²", ""])
def test_a_length_that_is_none_is_left_to_the_server(length: str) -> None:
    assert request("/", ("content-length", length)).announced_bytes is None


def test_a_key_is_never_repeated_in_an_answer() -> None:
    key = "secret" * 50
    with pytest.raises(RequestRefused) as in_header:
        policy().candidate(Request("POST", "/", "/", "", (("idempotency-key", key),), None))
    found = policy().candidate(Request("POST", "/", "/", "", (("content-type", "application/json"),), None))
    assert found is not None
    with pytest.raises(RequestRefused) as in_body:
        policy().entry(found, b'{"idempotency_key": "%s"}' % key.encode())
    for refused in (in_header, in_body):
        assert refused.value.response.status == 400
        assert b"secret" not in refused.value.response.body


def test_a_number_that_tells_whose_key_it_is_is_taken_as_text() -> None:
    given = policy(scope=lambda _: 7, operation=lambda _: 8)
    assert scope_of(given, request()) == "7/8"


@pytest.mark.parametrize("name", ["scope", "operation"])
@pytest.mark.parametrize("value", [None, True, b"acme", object()])
def test_anything_else_is_a_mistake_in_the_setup_and_none_is_nobodys_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidSetting, match=f"the function {name} returned .*'anonymous'"):
        scope_of(policy(**{"scope": everyone, name: lambda _: value}), request())


def test_who_may_be_told_apart_by_a_cookie_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_cookies.cache_clear()
    cookie, login = ("cookie", "session=a"), ("authorization", "Bearer a")
    scope_of(policy(), request("/", cookie, login))
    scope_of(policy(), request("/", ("cookie", "_ga=1"), login))
    scope_of(policy(scope=lambda _: "acme"), request("/", cookie))
    assert not caplog.messages
    for _ in range(2):
        scope_of(policy(), request("/", cookie))
    [warning] = caplog.messages
    assert "give the idempotency middleware a function `scope`" in warning
    assert "session" not in warning


def test_a_signature_that_is_new_in_every_attempt_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_signatures.cache_clear()
    for signature in ("AWS4-HMAC-SHA256 Signature=a", "AWS4-HMAC-SHA256 Signature=b"):
        scope_of(policy(scope=everyone), request("/", ("authorization", signature)))
    assert not caplog.messages
    for signature in ("AWS4-HMAC-SHA256 Signature=a", "AWS4-HMAC-SHA256 Signature=b"):
        scope_of(policy(), request("/", ("authorization", signature)))
    [warning] = caplog.messages
    assert "two attempts will both run" in warning
    assert "AWS4" not in warning


@pytest.mark.parametrize("empty", [("authorization", "Bearer "), ("x-api-key", ""), ("cookie", "sessionid=")])
def test_K_4_who_sends_an_empty_credential_is_nobody(empty: tuple[str, str]) -> None:
    with pytest.raises(RequestRefused) as refused:
        scope_of(policy(), request("/", empty))
    assert b"sender-unknown" in refused.value.response.body


def test_K_4_the_scope_covers_every_credential() -> None:
    key, other = ("x-api-key", "k"), ("x-api-key", "l")
    login, cookie, other_cookie = ("authorization", "Bearer a"), ("cookie", "sid=a"), ("cookie", "sid=b")
    sent = [
        (login,),
        (login, key),
        (login, other),
        (key,),
        (other,),
        (cookie,),
        (other_cookie,),
        (key, key),
        (key, other),
    ]
    assert len({scope_of(policy(), request("/", *headers)) for headers in sent}) == len(sent)
    assert scope_of(policy(), request("/", key, login)) == scope_of(policy(), request("/", login, key))
    assert scope_of(policy(), request("/", login)).startswith(
        "e58d500765ee604770bc71828a265a48/"
    )  # as entries have it that are there already


def test_K_4_what_the_server_tells_is_a_credential_that_nobody_else_can_send() -> None:
    def told(*pairs: tuple[str, str]) -> Request:
        return replace(request("/"), told_by_server=pairs)

    scopes = [scope_of(policy(), told(("remote-user", name))) for name in "ab"]
    assert len({*scopes, scope_of(policy(), request("/", ("remote-user", "a")))}) == 3


def test_K_4_a_key_of_nobody_is_refused_and_the_log_says_once_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_nobody.cache_clear()
    for headers in ((), (("cookie", "csrftoken=x; _ga=1"),), (("x-csrf-token", "x"), ("user-agent", "curl"))):
        with pytest.raises(RequestRefused) as refused:
            scope_of(policy(), request("/", *headers))
        assert (refused.value.response.status, b"sender-unknown" in refused.value.response.body) == (400, True)
    [warning] = caplog.messages
    assert "give the idempotency middleware a function `scope`" in warning


def test_K_4_a_login_cookie_beside_another_credential_makes_another_request_of_it() -> None:
    def digest(*cookies: str, **options: Any) -> str:
        sent = (("authorization", "a"), *(("cookie", cookie) for cookie in cookies))
        found = policy(**options).candidate(request("/", *sent))
        assert found is not None
        entry = policy(**options).entry(found, b"")
        assert entry is not None
        return entry.digest

    assert digest() == digest("_ga=1; theme=dark") == digest("_ga=2") == digest("session=a", scope=everyone)
    assert len({digest(), digest("session=a"), digest("session=b"), digest("session=a; jwt=c")}) == 4
    assert digest("session=a; jwt=c") == digest("jwt=c;session=a") == digest("jwt=c", "session=a")


@pytest.mark.parametrize(
    ("key", "options", "is_refused"),
    [
        (True, {}, True),
        (True, {"pass_large_requests": True}, False),
        (True, {"pass_large_requests": True, "required": ["POST"]}, False),
        (False, {}, False),
        (False, {"required": ["POST"]}, True),
        (False, {"pass_large_requests": True, "required": ["POST"]}, True),  # else any key could be got round by size
    ],
)
def test_K_2_a_large_request_needs_its_key_in_the_header(key: bool, options: Any, is_refused: bool) -> None:  # noqa: FBT001 - parameters of the test
    sent = (("content-type", "application/json"), ("content-length", "2000000"))
    headers = (("idempotency-key", "k"), *sent) if key else sent
    asked = Request("POST", "/", "/", "", headers, None)
    if is_refused:
        with pytest.raises(RequestRefused) as refused:
            policy(**options).candidate(asked)
        assert refused.value.response.status == 413
    else:
        assert policy(**options).candidate(asked) is None


def test_a_slash_at_the_end_makes_no_other_operation() -> None:
    for path, route in (("/orders/", ""), ("/orders", ""), ("/o", "/orders/"), ("/o", "/orders")):
        assert scope_of(policy(scope=everyone), request(path, route=route)) == "/POST %2Forders"
    assert scope_of(policy(scope=everyone), request("/")) == "/POST %2F"
