"""GET from allowed hosts only. The address that was checked is the address connected to."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from urllib.parse import SplitResult, urljoin, urlsplit

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.options import MediaOptions

MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_BLOCK = 1 << 16
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def fetch(url: str, field: str, options: MediaOptions) -> bytes:
    """Body of `url`. Raises InvalidRequest on `field`: host or address not allowed, too large, too slow, not found."""
    deadline = time.monotonic() + options.fetch_seconds
    for _ in range(MAX_REDIRECTS + 1):
        parts = _allowed(url, field, options)
        connection = _connect(parts, field, options, deadline)
        # A time limit on the socket starts anew with each byte: only this one cannot be put off.
        watch = threading.Timer(_left(field, deadline), _cut, (connection.sock,))
        watch.daemon = True
        watch.start()
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"User-Agent": "qwen3-omni", "Accept-Encoding": "identity"})
            response = connection.getresponse()
            if response.status in _REDIRECTS:
                url = _joined(url, response.getheader("Location") or "", field)
                continue
            if response.status != 200:
                raise InvalidRequest(field, f"the server answered {response.status}")
            return _body(response, field, options.max_bytes, deadline)
        except (OSError, http.client.HTTPException) as error:
            _left(field, deadline)
            raise InvalidRequest(field, f"could not be fetched: {type(error).__name__}") from None
        finally:
            watch.cancel()
            connection.close()
    raise InvalidRequest(field, f"more than {MAX_REDIRECTS} redirects")


def _joined(url: str, target: str, field: str) -> str:
    try:
        return urljoin(url, target)
    except ValueError as error:
        raise InvalidRequest(field, f"a redirect is not a URL: {error}") from None


def _allowed(url: str, field: str, options: MediaOptions) -> SplitResult:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidRequest(field, f"is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise InvalidRequest(field, f"a redirect to {parts.scheme or 'nothing'} is not allowed")
    if not options.allowed_media_domains:
        raise InvalidRequest(field, "web addresses are not allowed on this server")
    if host is None or host.lower().rstrip(".") not in options.allowed_media_domains:
        raise InvalidRequest(field, f"the host {host!r} is not on this server's list")
    if parts.username is not None or any(ord(char) <= 32 or ord(char) >= 127 for char in url):
        raise InvalidRequest(field, "may not hold a user name, spaces or control characters")
    return parts


def _connect(parts: SplitResult, field: str, options: MediaOptions, deadline: float) -> http.client.HTTPConnection:
    host, secure = parts.hostname, parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InvalidRequest(field, f"the host {host!r} was not found") from None
    if not options.allow_private_addresses and not all(_public(item[4][0]) for item in found):
        raise InvalidRequest(field, f"the host {host!r} has a private address")
    connection = http.client.HTTPConnection(host, port, timeout=_left(field, deadline))
    try:
        # Connected here, so that no second look-up can answer with another address.
        family, kind, protocol, _, address = found[0]
        connection.sock = socket.socket(family, kind, protocol)
        connection.sock.settimeout(_left(field, deadline))
        connection.sock.connect(address)
        if secure:
            connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=host)
    except OSError as error:
        connection.close()
        raise InvalidRequest(field, f"could not be fetched: {type(error).__name__}") from None
    return connection


def _public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return all(one.is_global and not one.is_multicast for one in _inside(ip) or [ip])


def _inside(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """IPv4 addresses that an IPv6 one stands for: mapped, 6to4, Teredo's two, NAT64 (RFC 6052)."""
    if ip.version == 4:
        return []
    found = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64:
        found.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    return [one for one in found if one is not None]


def _body(response: http.client.HTTPResponse, field: str, max_bytes: int, deadline: float) -> bytes:
    blocks, size = [], 0
    while block := response.read1(_BLOCK):
        size += len(block)
        if size > max_bytes:
            raise InvalidRequest(field, f"is larger than {max_bytes} bytes")
        blocks.append(block)
    _left(field, deadline)
    if response.length:
        raise InvalidRequest(field, "the connection ended early")
    return b"".join(blocks)


def _cut(connected: socket.socket) -> None:
    # Not the method of SSLSocket, which would take the session from under the reading thread.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _left(field: str, deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise InvalidRequest(field, "took too long to fetch")
    return left
