"""The bytes behind a media reference: inline base64, an allowed local file or an allowed web address."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from urllib.parse import unquote_to_bytes, urlsplit

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.options import MediaOptions
from python_backends.thinker.media.web import fetch

_STANDARD_ALPHABET = bytes.maketrans(b"-_", b"+/")
_WHITE_SPACE = b" \t\r\n\f\v"


def read_source(source: str, field: str, options: MediaOptions) -> bytes:
    """Read what `source` names. Raises InvalidRequest on `field` for what is not allowed, missing or too large."""
    try:
        scheme = urlsplit(source[:2048]).scheme.lower()
    except ValueError as error:
        raise InvalidRequest(field, f"is not a URL: {error}") from None
    if scheme == "data":
        data = _inline(source, field, options.max_bytes)
    elif scheme in ("http", "https"):
        data = fetch(source, field, options)
    elif scheme == "file":
        data = _local(source, field, options)
    else:
        raise InvalidRequest(field, "must be a data:, http:, https: or file: URL")
    if not data:
        raise InvalidRequest(field, "is empty")
    return data


def _inline(source: str, field: str, max_bytes: int) -> bytes:
    head, comma, body = source.partition(",")
    if not comma:
        raise InvalidRequest(field, "is not a data URL: it has no comma")
    if not head.lower().rstrip().endswith(";base64"):
        # Percent-encoding only shrinks when it is undone.
        if len(body) > 3 * max_bytes:
            raise InvalidRequest(field, f"is larger than {max_bytes} bytes")
        return _limited(unquote_to_bytes(body), field, max_bytes)
    return _base64(body, field, max_bytes)


def _base64(body: str, field: str, max_bytes: int) -> bytes:
    """In either alphabet, with or without padding and line breaks, percent-encoded or not."""
    # A line break may follow each character, and a percent-encoded one has three; mostly there are few of both.
    if len(body) > 6 * max_bytes + 64:
        raise InvalidRequest(field, f"is larger than {max_bytes} bytes")
    written = unquote_to_bytes(body) if "%" in body else body.encode("ascii", "replace")
    digits = written.translate(_STANDARD_ALPHABET, _WHITE_SPACE).rstrip(b"=")
    if 3 * len(digits) // 4 > max_bytes:
        raise InvalidRequest(field, f"is larger than {max_bytes} bytes")
    try:
        return base64.b64decode(digits + b"=" * (-len(digits) % 4), validate=True)
    except binascii.Error:
        reason = "is not base64: taken are A-Z, a-z, 0-9, + and / or - and _, with or without = at the end"
        raise InvalidRequest(field, f"{reason} and line breaks") from None


def _local(source: str, field: str, options: MediaOptions) -> bytes:
    if options.allowed_local_media_path is None:
        raise InvalidRequest(field, "local files are not allowed on this server")
    parts = urlsplit(source)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidRequest(field, "a file URL has a path and nothing else")
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if "\0" in path or ".." in path.split("/"):
        raise InvalidRequest(field, "the path may not contain '..'")
    root = os.path.realpath(options.allowed_local_media_path)
    try:
        # Not blocking: a named pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        # One answer for all: whether a path outside the directory exists is nobody's business.
        raise InvalidRequest(field, "cannot be read") from None
    try:
        # Of the open file, not of the path: a link cannot be exchanged between the check and the read.
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        if not real.startswith(os.path.join(root, "")) or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidRequest(field, "cannot be read")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return _limited(file.read(options.max_bytes + 1), field, options.max_bytes)
    finally:
        os.close(descriptor)


def _limited(data: bytes, field: str, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise InvalidRequest(field, f"is larger than {max_bytes} bytes")
    return data
