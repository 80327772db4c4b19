"""Somebody who uses the dashboard without a browser."""

from __future__ import annotations

import html
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from postroom.web import Dashboard

TOKEN = "a token that nobody guesses"  # noqa: S105 - a test's
OURS = {"sec-fetch-site": "same-origin"}
PAGES = ("", "messages", "messages?state=dead", "dead", "sagas", "transactions", "lookup", "audit")


class Visitor:
    """Sends requests as a browser does."""

    def __init__(self, app: Dashboard | Any, prefix: str = "") -> None:
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url=f"http://shop.example{prefix}/", follow_redirects=True
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    async def log_in(self, name: str = "ada", token: str = TOKEN) -> httpx.Response:
        return await self.post("login", {"token": token, "name": name})

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.client.get(path, headers=headers)

    async def post(
        self, path: str, form: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return await self.client.post(path, data=form or {}, headers=OURS if headers is None else headers)

    async def press(self, page: str, do: str) -> httpx.Response:
        """Press a button of a page's form, with the form's hidden fields."""
        answer = await self.get(page)
        for action, body in re.findall(r'<form action="(\w+)" method="post".*?>(.*?)</form>', answer.text, re.DOTALL):
            if f'value="{do}"' in body:
                return await self.post(action, {**hidden(body), "do": do})
        raise AssertionError(f"{page} has no button {do}")


def hidden(body: str) -> dict[str, Any]:
    """The hidden fields of a form."""
    fields: dict[str, Any] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', body):
        fields.setdefault(name, []).append(html.unescape(value))
    return fields


@asynccontextmanager
async def visiting(url: str) -> AsyncIterator[Visitor]:
    """Somebody who is logged in to a dashboard of its own."""
    from postroom.web import Dashboard

    app = Dashboard(url, token=TOKEN)
    async with Visitor(app) as visitor:
        await visitor.log_in()
        yield visitor
    await app.close()
