"""Which requests need a key, and which may have one."""

from __future__ import annotations

import pytest

from postroom.errors import InvalidSetting
from postroom.web.idempotency.routes import Need, Route, Routes
from postroom.web.requests import Request


def request(method: str, path: str) -> Request:
    return Request(method, path, path, "", (), None)


@pytest.mark.parametrize(
    ("pattern", "method", "path", "operation"),
    [
        ("POST", "POST", "/any/thing", ""),
        ("POST", "PATCH", "/", None),
        ("/orders", "PUT", "/orders", "PUT /orders"),
        ("/orders", "PUT", "/orders/", "PUT /orders"),
        ("/orders/", "PUT", "/orders", "PUT /orders"),
        ("/", "PUT", "/", "PUT /"),
        ("/orders/{id}/pay/", "PUT", "/orders/7/pay/", "PUT /orders/{id}/pay"),
        ("/orders/{id}", "PUT", "/orders/7", "PUT /orders/{id}"),
        ("/orders/{id}", "PUT", "/orders/7/pay", None),
        ("/orders/{id}", "PUT", "/orders/", None),
        ("POST /orders/{id}/pay", "POST", "/orders/7/pay", "POST /orders/{id}/pay"),
        ("POST /orders/{id}/pay", "GET", "/orders/7/pay", None),
        ("/x/{}/y", "POST", "/x/7/y", "POST /x/{}/y"),
        ("POST /v1/*", "POST", "/v1/a/b", ""),
        ("POST /v1/*", "POST", "/v1/", ""),
        ("POST /v1/*", "POST", "/v2/a", None),
        ("/a.b", "POST", "/axb", None),
        ("/{a}/{b}", "POST", "/x\n/y", "POST /{a}/{b}"),
    ],
)
def test_a_pattern_names_a_method_a_path_or_both(pattern: str, method: str, path: str, operation: str | None) -> None:
    expected = Route(Need.NONE) if operation is None else Route(Need.OPTIONAL, operation)
    assert Routes((), [pattern]).route(request(method, path)) == expected


def test_what_is_required_comes_before_what_is_optional() -> None:
    routes = Routes(["/pay"], ["POST", "/pay"])
    assert routes.route(request("POST", "/pay")).need is Need.REQUIRED
    assert routes.route(request("POST", "/other")).need is Need.OPTIONAL
    assert routes.route(request("GET", "/other")).need is Need.NONE


def test_a_function_may_tell() -> None:
    routes = Routes(lambda asked: asked.path == "/pay", lambda asked: asked.method == "POST")
    assert routes.route(request("GET", "/pay")) == Route(Need.REQUIRED)
    assert routes.route(request("POST", "/")) == Route(Need.OPTIONAL)
    assert routes.route(request("GET", "/")) == Route(Need.NONE)


@pytest.mark.parametrize(
    "wrong",
    [
        *["", "orders", "post /orders", "POST orders", "POST  /a b", "FETCH /x", "FETCH", "POST /a/*/b", "/a/**"],
        *["/x/{id", "/x/id}", "/x/{id:int}", "/x/{a-b}", "/x/<id>", "/x?a=1", "/x#a"],
    ],
)
def test_what_is_no_pattern_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidSetting, match="pattern"):
        Routes([wrong], ())
