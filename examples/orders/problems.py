"""Error responses: always a problem in the form of RFC 9457."""

from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from postroom.errors import InvalidEntry


class Problem(Exception):
    """A request is refused."""

    def __init__(self, status: HTTPStatus, name: str, title: str, **members: Any) -> None:
        super().__init__(title)
        self.status = status
        self.body = {"type": f"urn:orders:{name}", "title": title, "status": status, **members}

    def response(self, headers: dict[str, str] | None = None) -> Response:
        """The problem as a response."""
        return JSONResponse(self.body, self.status, headers, media_type="application/problem+json")


def tell_problem(_request: Request, problem: Problem) -> Response:
    """Respond to a problem that we found ourselves."""
    return problem.response()


def tell_invalid_key(_request: Request, error: InvalidEntry) -> Response:
    """Respond to an invalid key. The error's text does not repeat it."""
    return Problem(HTTPStatus.BAD_REQUEST, "key-invalid", "This is no Idempotency-Key.", detail=str(error)).response()


def tell_invalid_request(_request: Request, error: RequestValidationError) -> Response:
    """Respond to a request that is not a valid order."""
    wrong = [{"where": ".".join(map(str, one["loc"])), "what": one["msg"]} for one in error.errors()]
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", "This is not an order.", errors=wrong).response()


def tell_http_error(_request: Request, error: HTTPException) -> Response:
    """Respond to an error of the framework: no such path or method, or an unreadable body."""
    status = HTTPStatus(error.status_code)
    return Problem(status, "http", status.phrase, detail=error.detail).response(dict(error.headers or {}))


HANDLERS: dict[Any, Any] = {
    Problem: tell_problem,
    InvalidEntry: tell_invalid_key,
    RequestValidationError: tell_invalid_request,
    HTTPException: tell_http_error,
}
"""For ``FastAPI(exception_handlers=…)``."""
