"""Who may do what: rights, and the signed cookie of those who came in with the token."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting
from postroom.web.dashboard.params import UNSTORABLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    Authorize = Callable[[Request], "Access | Response | Awaitable[Access | Response | None] | None"]

SHORTEST_TOKEN = 16
LONGEST_NAME = 100
_PURPOSE = b"postroom dashboard session, version 1"


@dataclass(frozen=True, slots=True)
class Access:
    """What a person may do. Everyone who has one may read, without payloads and values of headers."""

    name: str
    """Who it is, for the audit log."""
    actions: bool = False
    """Requeue, discard, cancel, edit, and everything else that changes something."""
    payloads: bool = False
    """See payloads, values of headers, data of sagas, recorded responses. Each look is audited."""

    def __post_init__(self) -> None:
        name: object = self.name  # programs without types give all sorts of things
        if not isinstance(name, str) or not name.strip() or UNSTORABLE.search(name):
            raise InvalidSetting(f"name = {name!r} is not valid: give the person's name as text, for the audit log")

    def reading(self) -> Access:
        """The same person, who may change nothing."""
        return replace(self, actions=False)


def usable_token(token: str) -> str:
    """The token as it is compared. Raises `InvalidSetting` if it can be guessed."""
    if len(token.strip()) < SHORTEST_TOKEN:
        raise InvalidSetting(
            f"the dashboard's token has fewer than {SHORTEST_TOKEN} characters: make one with "
            '`python -c "import secrets; print(secrets.token_urlsafe())"`'
        )
    return token.strip()


class Sessions:
    """Cookies for people who know the token. They hold in every process that has the same token, until they expire."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._key = hmac.digest(self._token, _PURPOSE, hashlib.sha256)
        # Browsers send a cookie to every port of a host: so that two dashboards on one host can be open side by side.
        self.cookie_name = f"postroom_dashboard_{hmac.new(self._key, b'name', hashlib.sha256).hexdigest()[:8]}"

    def is_token(self, given: str) -> bool:
        """Whether it is the token; takes as long for every wrong one."""
        return hmac.compare_digest(_hashed(given.strip().encode()), _hashed(self._token))

    def cookie(self, name: str, expires: float) -> str:
        """A value that only we can make."""
        body = f"{int(expires)}.{base64.urlsafe_b64encode(name.encode()).decode().rstrip('=')}"
        return f"{body}.{self._signature(body)}"

    def name_in(self, cookie: str, now: float) -> str | None:
        """Who came in with this cookie; None if it is not ours, or has expired."""
        body, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._signature(body).encode(), signature.encode()):
            return None
        expires, _, name = body.partition(".")
        if int(expires) <= now:
            return None
        try:
            return base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):  # pragma: no cover - only we can sign, and we sign names
            return None

    def _signature(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


def _hashed(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
