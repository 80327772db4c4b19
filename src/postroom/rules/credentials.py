"""Credentials: what of a request tells whose it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TELLING = frozenset(
    {
        # what proves it
        *("authorization", "auth", "key", "apikey", "token", "accesstoken", "authtoken", "secret", "password"),
        *("credential", "credentials", "session", "sessionid", "sid", "jwt", "cert", "clientcert", "certificate", "dn"),
        # what a proxy or a gateway tells that has proved it
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
"""Words in names of headers: Authorization, X-API-Key, X-Forwarded-Client-Cert, X-Auth-Request-User and the like."""
_PASSING = frozenset(
    {
        *("idempotency", "csrf", "xsrf", "csrftoken", "captcha", "recaptcha", "turnstile", "otp", "totp", "mfa", "2fa"),
        *("agent", "sec", "trace", "correlation", "cache", "surrogate", "nonce", "continuation", "page", "partition"),
        *("signature", "sign", "hmac", "digest", "timestamp", "time", "ts", "date", "expires"),
    }
)
"""Words of others that sound like it, and are no credential, or one that is new in every attempt."""
_EMPTY = re.compile(r"(?i)\s*(?:(?:bearer|basic|token|apikey)\b)?\s*(?:null|undefined|none|\"\")?\s*")
"""What a client sends that has no credential."""
_EMPTY_COOKIE = re.compile(r'(?:[^=]*=)?\s*(?:"")?\s*')
_MADE_ANEW = re.compile(r"(?i)(?:digest|oauth|hawk|signature|negotiate|ntlm|\S*hmac\S*)\s")
_ENDINGS = ("id", "name", "info", "code", "key", "token")
"""What is often written together with such a word, as in X-TenantId and X-UserInfo."""
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
"""Cookies that change by themselves between two attempts, and tell nobody."""


_LOGIN = re.compile(
    r"(?i)sess|(?:^|[._-])[su]id$|auth|token|jwt|login|user|account|identity|remember|^__(?:host|secure)-"
    r"|ticket|tenant|customer|member|^\.aspnet"
)
"""Cookies that are likely to be the one that tells."""


def credentials(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers, their names in lower case, that tell whose request it is, by the words in their names; sorted.

    Those that change between two attempts of one request are left out, as far as they are known: with them each attempt
    would be another one's. Cookies are not among them, nor what is empty, and so might be anybody's.
    """
    return sorted((name, value) for name, value in headers if is_credential(name) and not _EMPTY.fullmatch(value))


def is_made_anew(authorization: str) -> bool:
    """Whether an Authorization header is of a scheme that signs each attempt anew, and so makes it another one's."""
    return _MADE_ANEW.match(authorization) is not None


def is_credential(name: str) -> bool:
    """Whether a header of this name, in lower case, tells whose request it is."""
    words = set(name.replace("_", "-").split("-"))
    return not words & _PASSING and (any(map(_tells, words)) or _CLIENT.search(name) is not None)


def _tells(word: str) -> bool:
    return word in _TELLING or any(word.removesuffix(end) in _TELLING for end in _ENDINGS)


def cookies(headers: Iterable[tuple[str, str]]) -> list[str]:
    """The cookies, each as it was sent, sorted, but for empty ones and those known to change by themselves."""
    sent = (one.strip() for name, value in headers if name == "cookie" for one in re.split("[;,]", value))
    return sorted(
        one for one in sent if not _EMPTY_COOKIE.fullmatch(one) and not _PASSING_COOKIES.fullmatch(_name(one))
    )


def logins(sent: Iterable[str]) -> list[str]:
    """Those of the cookies that are likely to tell whose request it is."""
    return [one for one in sent if _LOGIN.search(_name(one))]


def _name(cookie: str) -> str:
    return cookie.partition("=")[0].strip()
