"""What of a request tells whose it is."""

from __future__ import annotations

import pytest

from postroom.rules.credentials import cookies, credentials, is_credential, is_made_anew, logins


@pytest.mark.parametrize(
    "name",
    [
        *[
            "authorization",
            "proxy-authorization",
            "x-api-key",
            "api-key",
            "apikey",
            "x-apikey",
            "x-auth-token",
            "x-token",
        ],
        *["ocp-apim-subscription-key", "x-functions-key", "x-goog-api-key", "x-acme-key", "private-token", "x-secret"],
        *["x-amz-security-token", "x-shopify-access-token", "x-session-id", "x-sid", "cf-access-jwt-assertion"],
        *["client-cert", "x-client-cert", "x-forwarded-client-cert", "x-amzn-mtls-clientcert-leaf", "ssl-client-s-dn"],
        *["x-ssl-client-verify", "x-ssl-client-serial", "x-client-id", "x-arr-clientcert", "x_api_key"],
        *[
            "remote-user",
            "x-forwarded-user",
            "x-auth-request-email",
            "x-ms-client-principal-id",
            "x-amzn-oidc-identity",
        ],
        *["x-user-id", "x-tenant-id", "x-consumer-username", "x-account"],
        *["x-tenantid", "x-scope-orgid", "x-customerid", "x-accountid", "x-userinfo", "x-endpoint-api-userinfo"],
        *["x-clientid", "x-accesskey", "x-usertoken", "openai-project", "x-company-id", "x-on-behalf-of"],
    ],
)
def test_K_4_a_name_with_such_a_word_is_that_of_a_credential(name: str) -> None:
    assert is_credential(name)


@pytest.mark.parametrize(
    "name",
    [
        *["idempotency-key", "x-idempotency-key", "user-agent", "x-user-agent", "sec-fetch-user", "sec-websocket-key"],
        *["x-csrf-token", "x-xsrf-token", "x-recaptcha-token", "x-otp-token", "x-mfa-token", "x-cache-key"],
        *[
            "content-type",
            "content-length",
            "host",
            "accept",
            "cookie",
            "traceparent",
            "x-request-id",
            "x-client-version",
        ],
        *[
            "x-api-version",
            "x-forwarded-for",
            "date",
            "x-auth-signature",
            "x-auth-timestamp",
            "surrogate-key",
            "keep-alive",
            "authority",
        ],
    ],
)
def test_others_are_none_or_are_new_in_every_attempt(name: str) -> None:
    assert not is_credential(name)


def test_credentials_are_sorted_and_each_counts() -> None:
    sent = [("x-api-key", "b"), ("accept", "*/*"), ("cookie", "a=b"), ("authorization", "a"), ("x-api-key", "a")]
    assert credentials(sent) == [("authorization", "a"), ("x-api-key", "a"), ("x-api-key", "b")]


@pytest.mark.parametrize(
    "value", ["", " ", "Bearer", "Bearer ", "bearer undefined", "Bearer null", "Basic ", "null", '""']
)
def test_K_4_what_is_empty_tells_nobody(value: str) -> None:
    assert credentials([("authorization", value), ("x-api-key", value)]) == []
    assert cookies([("cookie", 'sessionid=; session=""; ;')]) == []


def test_a_short_credential_is_one() -> None:
    sent = [("authorization", "Bearer nullable"), ("x-api-key", "0"), ("x-token", "tokens"), ("x-user", "none of them")]
    assert credentials(sent) == sent


def test_schemes_that_sign_each_attempt_are_known() -> None:
    signed = ["AWS4-HMAC-SHA256 Credential=a", 'Digest username="a"', "OAuth a=b", "HMAC a:b", "Signature keyId=a"]
    assert [is_made_anew(one) for one in signed] == [True] * len(signed)
    assert not any(map(is_made_anew, ["Bearer digest", "Basic YTpi", "hmac", "token"]))


def test_cookies_are_those_that_do_not_change_by_themselves() -> None:
    passing = "csrftoken=1; XSRF-TOKEN=2; _ga=3; _ga_X1=4; AWSALB=5; __cf_bm=6; messages=7; django_language=de"
    assert cookies([("cookie", passing), ("accept", "a=b")]) == []
    assert cookies([("cookie", f"shop=2;  sessionid=1; {passing};"), ("cookie", "a")]) == ["a", "sessionid=1", "shop=2"]


def test_logins_are_those_whose_name_says_so() -> None:
    told = [
        "PHPSESSID=1",
        "connect.sid=2",
        "auth_token=3",
        "__Host-x=4",
        "remember_me=5",
        "uid=6",
        ".AspNetCore.Cookies=7",
    ]
    assert logins([*told, "cart=1", "side=2", "shop=session"]) == told
