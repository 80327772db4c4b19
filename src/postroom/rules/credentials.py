"""Credentials: the headers and cookies that tell whose request it is."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TELLING = frozenset(
    {
        # proof of identity
        *("authorization", "auth", "key", "apikey", "token", "accesstoken", "authtoken", "secret", "password"),
        *("credential", "credentials", "session", "sessionid", "sid", "jwt", "cert", "clientcert", "certificate", "dn"),
        # the identity that a proxy or gateway has verified
        *(
            "user",
            "userid",
            "username",
            "email",
            "account",
            "tenant",
            "org",
            "organization",
            "organisation",
            "customer",
        ),
        *("consumer", "merchant", "partner", "principal", "identity", "subject", "member", "workspace", "company"),
        *("team", "project", "shop", "store", "seller", "vendor", "login", "caller", "actor", "behalf", "impersonate"),
        *("uid", "clientid", "accesskey", "appkey", "secretkey", "bearer"),
    }
)
"""Words in header names: Authorization, X-API-Key, X-Forwarded-Client-Cert, X-Auth-Request-User and the like."""
_PASSING = frozenset(
    {
        *("idempotency", "csrf", "xsrf", "csrftoken", "captcha", "recaptcha", "turnstile", "otp", "totp", "mfa", "2fa"),
        *("agent", "sec", "trace", "correlation", "cache", "surrogate", "nonce", "continuation", "page", "partition"),
        *("signature", "sign", "hmac", "digest", "timestamp", "time", "ts", "date", "expires"),
    }
)
"""Words in the names of headers that look similar, but are no credentials or change with every attempt."""
_EMPTY = re.compile(r"(?i)\s*(?:(?:bearer|basic|token|apikey)\b)?\s*(?:null|undefined|none|\"\")?\s*")
"""Values sent by a client that has no credential."""
_EMPTY_COOKIE = re.compile(r'(?:[^=]*=)?\s*(?:"")?\s*')
_MADE_ANEW = re.compile(r"(?i)(?:digest|oauth|hawk|signature|negotiate|ntlm|\S*hmac\S*)\s")
_ENDINGS = ("id", "name", "info", "code", "key", "token")
"""Suffixes often joined to such a word, as in X-TenantId and X-UserInfo."""
_CLIENT = re.compile(r"(?:^|-)(?:(?:ssl|tls|mtls)-client(?:-|$)|client-id$)")
_PASSING_COOKIES = re.compile(
    r"""(?ix)
    .*(?:csrf|xsrf|captcha|consent|nonce) .* | messages | flash
    | awsalb.* | awselb.* | arraffinity.* | bigipserver.* | gclb | serverid | routeid | route | sticky.*  # balancers
    | __cf.* | _cfuvid | cf_.* | incap_ses.* | visid_incap.* | ak_bmsc | bm_.* | datadome                # their guards
    | _ga.* | _gid | _gat.* | _gcl.* | __utm.* | _fb[pc] | _hj.* | _pk_.* | _cl[cs]k | _uet.* | _dd_s     # statistics
    | ajs_.* | amp_.* | amplitude.* | mp_.* | optimizely.* | intercom-.* | __hs.* | hubspotutk | _tt.* | _pin.*
    | (?:django_)?lang(?:uage)? | locale | theme | tz | timezone
    """
)
"""Cookies that change between attempts and identify nobody."""


_LOGIN = re.compile(
    r"(?i)sess|(?:^|[._-])[su]id$|auth|token|jwt|login|user|account|identity|remember|^__(?:host|secure)-"
    r"|ticket|tenant|customer|member|^\.aspnet"
)
"""Cookies that are likely to identify the user."""


def credentials(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers that tell whose request it is, judged by the words in their names; sorted, names in lower case.

    Headers known to change between two attempts of a request are left out: they would make each attempt look like a
    different client's. So are cookies, and empty headers, which anybody could send.
    """
    return sorted((name, value) for name, value in headers if is_credential(name) and not _EMPTY.fullmatch(value))


def is_made_anew(authorization: str) -> bool:
    """Whether an Authorization header's scheme signs each attempt anew, so that two attempts never look alike."""
    return _MADE_ANEW.match(authorization) is not None


@lru_cache(maxsize=1024)
def is_credential(name: str) -> bool:
    """Whether a header with this name, in lower case, tells whose request it is."""
    words = set(name.replace("_", "-").split("-"))
    return not words & _PASSING and (any(map(_tells, words)) or _CLIENT.search(name) is not None)


def _tells(word: str) -> bool:
    return word in _TELLING or any(word.removesuffix(end) in _TELLING for end in _ENDINGS)


def cookies(headers: Iterable[tuple[str, str]]) -> list[str]:
    """The cookies as sent, sorted, without empty ones and those known to change between attempts."""
    sent = (one.strip() for name, value in headers if name == "cookie" for one in re.split("[;,]", value))
    return sorted(
        one for one in sent if not _EMPTY_COOKIE.fullmatch(one) and not _PASSING_COOKIES.fullmatch(_name(one))
    )


def logins(sent: Iterable[str]) -> list[str]:
    """The cookies that are likely to identify the user."""
    return [one for one in sent if _LOGIN.search(_name(one))]


def _name(cookie: str) -> str:
    return cookie.partition("=")[0].strip()
