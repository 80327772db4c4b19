"""What stands before every page: no request from other sites changes anything, and no browser runs what is not ours."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import Request

    from postroom.web.http import Event, Send

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""Every response has them; static files may be cached."""


def secured(send: Send) -> Send:
    """Add the headers to whatever is sent."""

    async def add(event: Event) -> None:
        if event["type"] == "http.response.start":
            given = {name.lower() for name, _ in event["headers"]}
            extra = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
            event["headers"] = [*event["headers"], *(pair for pair in extra if pair[0] not in given)]
        await send(event)

    return add


def why_cross_site(request: Request) -> str | None:
    """Why a request that would change something is refused: another site may have sent it. None if it is ours.

    Browsers say where a request comes from: `Sec-Fetch-Site` where the connection is safe, `Origin` always.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return None if site == "same-origin" else f"Sec-Fetch-Site is {site!r}"
    if origin is None:
        return "neither Sec-Fetch-Site nor Origin is there"
    return None if _host(origin) in _hosts(request.headers) else f"Origin is {origin!r}"


def came_from_outside(request: Request) -> bool:
    """Whether another site's link led here: then the browser has kept the cookie back."""
    return request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site"


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _hosts(headers: Headers) -> set[str | None]:
    return {headers.get("host", "").lower() or "-"}
