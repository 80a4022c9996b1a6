"""Errors that travel to the client, each with a stable code."""

from __future__ import annotations

import re

# What messages of Python and of libraries may hold of this process and its host. A path after `file://` or a host is
# the client's own.
_PRIVATE = (
    (re.compile(r"<[^<>]* at 0x[0-9a-fA-F]+[^<>]*>"), "an object"),
    (re.compile(r"\b0x[0-9a-fA-F]{6,}"), "an address"),
    (re.compile(r"\b(?:ipc|tcp|inproc)://[^\s'\"]+"), "an address"),
    (re.compile(r"(?<![\w/.:])(?:/[\w.@+~-]+){2,}/?"), "a path of the server"),
)
LONGEST_MESSAGE = 1000


def readable(text: str) -> str:
    """`text` as one line of UTF-8 that a client and a log can take: escapes for what is none, its middle cut out,
    without objects, addresses and paths of this host.
    """
    for private, word in _PRIVATE:
        text = private.sub(word, text[: 64 * LONGEST_MESSAGE])
    if len(text) > LONGEST_MESSAGE:
        half = LONGEST_MESSAGE // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class OmniError(Exception):
    """An error that ends one stream. `code` is stable and part of the client contract; see `readable`."""

    code = "internal"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(readable(message))
        if code is not None:
            self.code = code

    def detached(self) -> OmniError:
        """The error without the frames that it came through, to be kept.

        A frame that knows the error which knows the frame lives on until the garbage collector finds both, and with it
        the callers' variables: Triton's requests among them, which must be freed before their shared memory is.
        """
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


class InvalidRequest(OmniError):
    """The request is at fault. `field` names the offending field, dotted from the request's root."""

    code = "invalid_request"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{readable(field)}: {reason}")
        self.field = field
        self.reason = reason


class Overloaded(OmniError):
    """No room now; the client may try again, after `retry_after_s` seconds where the message ends in them."""

    code = "overloaded"

    def __init__(self, reason: str, retry_after_s: int | None = None) -> None:
        super().__init__(reason if retry_after_s is None else f"{reason}; retry_after_s={retry_after_s}")
        self.retry_after_s = retry_after_s


class TimedOut(OmniError):
    """A time limit of the request or of the deploy configuration ran out."""

    code = "timeout"


class ShuttingDown(OmniError):
    """The server takes no new work."""

    code = "shutting_down"


class StageFailed(OmniError):
    """A stage died or broke while the stream was on it."""

    code = "stage_failed"


class Cancelled(OmniError):
    """The client cancelled or went away."""

    code = "cancelled"


class ProtocolError(OmniError):
    """A chunk arrived out of order, twice, or for a stream that is not open."""

    code = "protocol"
