"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fastapi import HTTPException
from fastapi.responses import JSONResponse

from client.streaming import OmniClientError

# Status by code of the client contract; the others are 500, and their words are not the client's business.
_STATUS = {"invalid_request": 400, "overloaded": 429, "shutting_down": 503, "timeout": 504}
_WITHOUT_DETAIL = {
    "stage_failed": "A stage of the model failed; the request may be sent again.",
    "cancelled": "The request was cancelled.",
    "disconnected": "The model's server cannot be reached.",
}
_TYPES = {429: "rate_limit_error", 401: "authentication_error"}


class ApiError(HTTPException):
    """An error answer. `param`: the field at fault, in the client's words."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        # Half a surrogate pair, which JSON can hold, is no UTF-8.
        message, param = _utf8(message), None if param is None else _utf8(param)
        super().__init__(status, message, None if retry_after_s is None else {"Retry-After": str(retry_after_s)})
        self.code, self.param = code, param

    def body(self) -> dict:
        kind = _TYPES.get(self.status_code, "server_error" if self.status_code >= 500 else "invalid_request_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status_code, self.headers)


def _utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def bad_field(param: str, reason: str) -> ApiError:
    return ApiError(400, "invalid_request", f"{param}: {reason}", param)


def from_server(error: OmniClientError, names: Mapping[str, str]) -> ApiError:
    """What a client is told. `names`: the client's name of each field that the contract calls otherwise."""
    status = _STATUS.get(error.code, 500)
    if status == 500:
        message = _WITHOUT_DETAIL.get(error.code, "The server failed on this request.")
        return ApiError(500, "server_error" if error.code == "server" else error.code, message)
    # What Triton says itself has words of its own.
    message = "The server takes no requests now." if status == 503 else str(error).split("; retry_after_s=")[0]
    found = re.match(r"([A-Za-z_][\w.\[\]]*): (.*)", message, re.DOTALL) if status in (400, 504) else None
    if found is None:
        after = (error.retry_after_s or 1) if status in (429, 503) else None
        return ApiError(status, error.code, message, "body" if status == 400 else None, after)
    param = _renamed(found[1], names)
    return ApiError(status, error.code, f"{param}: {found[2]}", param)


def _renamed(field: str, names: Mapping[str, str]) -> str:
    for name in sorted(names, key=len, reverse=True):
        if field == name or field.startswith((f"{name}.", f"{name}[")):
            return names[name] + field[len(name) :]
    return field


def from_validation(errors: Sequence[Mapping]) -> ApiError:
    """Of what pydantic found wrong the first; a body that is no JSON has the `param` body."""
    first = errors[0]
    path = [part for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid" or not path:
        return bad_field("body", "must be a JSON object, with the content type application/json")
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    reasons = {
        "extra_forbidden": "unknown field",
        "none_required": "is not supported by this server",
        "missing": "is required",
    }
    return bad_field(param, reasons.get(first["type"], first["msg"]))
