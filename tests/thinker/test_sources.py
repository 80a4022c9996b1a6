"""Where media may come from: allow lists, private addresses, redirects, paths."""

from __future__ import annotations

import base64
import http.server
import os
import socket
import threading
import time

import pytest

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media import web
from python_backends.thinker.media.options import MediaOptions
from python_backends.thinker.media.sources import read_source

BODY = b"some bytes of media"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        elif self.path == "/loop":
            self.send_response(302)
            self.send_header("Location", "/loop")
            self.end_headers()
        elif self.path == "/missing":
            self.send_error(404)
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            self._pour(1 << 30, b"x" * 4096, 0.0)
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            self._pour(1 << 30, b"x", 0.05)
        elif self.path == "/slow-head":
            self._pour(1 << 30, b"H", 0.05)
        elif self.path == "/short":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(BODY)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY)

    def _pour(self, size: int, block: bytes, pause: float) -> None:
        try:
            for _ in range(0, size, len(block)):
                self.wfile.write(block)
                time.sleep(pause)
        except OSError:
            # The client has had enough.
            return

    def log_message(self, *args):
        """Nothing is printed."""


@pytest.fixture(scope="module")
def port():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def options(**fields) -> MediaOptions:
    base = dict(
        allowed_media_domains=("localhost",), allow_private_addresses=True, max_bytes=100_000, fetch_seconds=5.0
    )
    return MediaOptions(**{**base, **fields})


def refused(source: str, reason: str, opts: MediaOptions) -> None:
    with pytest.raises(InvalidRequest, match=reason) as error:
        read_source(source, "f", opts)
    assert error.value.field == "f"


def test_allowed_host(port):
    assert read_source(f"http://localhost:{port}/a.wav", "f", options()) == BODY
    assert read_source(f"http://LOCALHOST:{port}/to/http://localhost:{port}/a.wav", "f", options()) == BODY
    assert read_source(f"http://localhost:{port}/to//a.wav", "f", options()) == BODY


def test_web_is_off_by_default(port):
    refused(f"http://localhost:{port}/a", "not allowed on this server", MediaOptions())


@pytest.mark.parametrize("host", ["127.0.0.1", "other.example", "localhost.evil.example", "notlocalhost"])
def test_other_hosts(port, host):
    refused(f"http://{host}:{port}/a", "not on this server's list", options())


def test_private_address_of_an_allowed_host(port):
    refused(f"http://localhost:{port}/a", "private address", options(allow_private_addresses=False))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2600::1", True),
        ("10.1.2.3", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False),
        ("2001:0:7f00:1::1", False),
    ],
)
def test_public_addresses(address, public):
    assert web._public(address) is public


def test_name_that_changes_its_address(port, monkeypatch):
    """The address that was checked is connected to: a second look-up would be asked in vain."""
    answers = [[(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]]
    monkeypatch.setattr(web.socket, "getaddrinfo", lambda *a, **k: answers.pop())
    assert web.fetch(f"http://localhost:{port}/a", "f", options()) == BODY
    assert answers == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/to/http://127.0.0.1:1/a", "not on this server's list"),
        ("/to/file:///etc/passwd", "redirect to file"),
        ("/loop", "redirects"),
        ("/missing", "404"),
        ("/endless", "larger than"),
        ("/short", "IncompleteRead|ended early"),
        ("/to/http://[::1", "a redirect is not a URL"),
        ("/a b", "spaces"),
        ("/a\r\nX: y", "spaces"),
    ],
)
def test_wrong_answers(port, path, reason):
    refused(f"http://localhost:{port}{path}", reason, options())


@pytest.mark.parametrize("path", ["/slow", "/slow-head"])
def test_slow_server(port, path):
    started = time.monotonic()
    refused(f"http://localhost:{port}{path}", "too long", options(fetch_seconds=0.5))
    assert time.monotonic() - started < 30


def test_nobody_listens():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        refused(f"http://localhost:{port}/a", "could not be fetched", options())


def test_user_in_the_address(port):
    refused(f"http://me@localhost:{port}/a", "user name", options())
    refused("http://localhost:port/a", "not a URL", options())


@pytest.fixture
def folder(tmp_path):
    inside, outside = tmp_path / "media", tmp_path / "secret"
    inside.mkdir()
    outside.mkdir()
    (inside / "a.wav").write_bytes(BODY)
    (outside / "b.wav").write_bytes(b"secret")
    (inside / "link.wav").symlink_to(outside / "b.wav")
    (inside / "inner.wav").symlink_to(inside / "a.wav")
    (inside / "door").symlink_to(outside)
    (inside / "big.wav").write_bytes(b"x" * 200_000)
    os.mkfifo(inside / "pipe")
    (tmp_path / "media2").mkdir()
    (tmp_path / "media2" / "c.wav").write_bytes(b"sibling")
    return inside


def test_local_files(folder):
    opts = options(allowed_local_media_path=str(folder))
    assert read_source(f"file://{folder}/a.wav", "f", opts) == BODY
    assert read_source(f"file://localhost{folder}/a.wav", "f", opts) == BODY
    assert read_source(f"file://{folder}/inner.wav", "f", opts) == BODY


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/../secret/b.wav", r"'\.\.'"),
        ("/%2e%2e/secret/b.wav", r"'\.\.'"),
        ("/link.wav", "cannot be read"),
        ("/door/b.wav", "cannot be read"),
        ("/none.wav", "cannot be read"),
        ("/pipe", "cannot be read"),
        ("/../../proc/self/fd/0", "may not contain"),
        ("", "cannot be read"),
        ("2/c.wav", "cannot be read"),
        ("/a.wav%00", r"'\.\.'"),
        ("/a.wav?x=1", "a path and nothing else"),
        ("/big.wav", "larger than"),
    ],
)
def test_paths_out_of_the_directory(folder, path, reason):
    started = time.monotonic()
    refused(f"file://{folder}{path}", reason, options(allowed_local_media_path=str(folder)))
    assert time.monotonic() - started < 30


def test_local_files_are_off_by_default(folder):
    refused(f"file://{folder}/a.wav", "not allowed", MediaOptions())
    refused(f"file://host{folder}/a.wav", "a path and nothing else", options(allowed_local_media_path=str(folder)))
    refused(str(folder / "a.wav"), "must be a data:", options(allowed_local_media_path=str(folder)))


# ---- base64 as people send it ----------------------------------------------------------------------------------------
# Bytes that use all of the alphabet, and whose base64 ends in two, one and no `=`.
BODIES = [bytes(range(256)) * 3 + b"x" * more for more in range(3)]


@pytest.mark.parametrize(
    "write",
    [
        lambda data: base64.encodebytes(data).decode(),
        lambda data: base64.encodebytes(data).decode().replace("\n", "\r\n"),
        lambda data: "\n " + base64.b64encode(data).decode() + "\n",
        lambda data: base64.urlsafe_b64encode(data).decode(),
        lambda data: base64.b64encode(data).decode().rstrip("="),
        lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
        lambda data: base64.b64encode(data).decode().replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
    ],
    ids=["line breaks", "CRLF", "around", "URL-safe", "unpadded", "URL-safe unpadded", "percent"],
)
@pytest.mark.parametrize("head", ["data:;base64,", "data:audio/wav;base64,", "DATA:image/png;charset=x;BASE64,"])
def test_base64_as_people_send_it(write, head):
    for body in BODIES:
        assert read_source(head + write(body), "f", MediaOptions()) == body


def test_base64_that_is_none_says_what_is_taken():
    for wrong in ("!!!!", "AAAAA", "AA=AAA", "é" * 4):
        with pytest.raises(InvalidRequest, match="not base64: taken are A-Z, a-z, 0-9"):
            read_source(f"data:;base64,{wrong}", "f", MediaOptions())
