"""OpenAI's API, the door: options, API keys, the size limit, CORS, a root path, TLS."""

from __future__ import annotations

import json
import re
import subprocess

import openai
import pytest

from client.openai_schema import ChatRequest
from client.openai_server import parse
from tests.client.openai_front import Front
from tests.client.test_openai import HELLO
from tests.server import ROOT


@pytest.fixture(scope="module")
def guarded(server, tmp_path_factory):
    """An HTTP server with keys, origins, a small limit, names and a root path, which speaks TLS."""
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "keys").write_text("first\nsecond\n")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", directory / "key.pem", "-out", directory / "cert.pem", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    options = ["--api-key-file", directory / "keys", "--allowed-origins", "https://a.example", "https://b.example"]
    options += ["--http-max-input-size", 5000, "--served-model-name", "omni", "qwen/omni", "--root-path", "/speech"]
    options += ["--ssl-certfile", directory / "cert.pem", "--ssl-keyfile", directory / "key.pem"]
    with Front(server.url, *options, certificate=directory / "cert.pem") as guarded:
        yield guarded


def test_keys(guarded):
    """A wrong key or none is AuthenticationError; probes need none."""
    body = {"model": "qwen/omni", "messages": HELLO, "max_tokens": 3}
    for key in ("wrong", "fir", "firstsecond"):
        with pytest.raises(openai.AuthenticationError) as caught:
            guarded.client(key).chat.completions.create(**body)
        assert caught.value.code == "invalid_api_key"
    for key in ("first", "second"):
        assert guarded.client(key).chat.completions.create(**body).model == "qwen/omni"
    assert [model.id for model in guarded.client("first").models.list()] == ["omni", "qwen/omni"]
    assert json.loads(guarded.get("/health")) == {"status": "ok"}


def test_a_body_that_is_too_large(guarded):
    """413, whether its length is announced or found out; the next request is served."""
    client = guarded.client("first")
    body = {"model": "omni", "messages": [{"role": "user", "content": "x" * 5000}]}
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**body)
    assert caught.value.status_code == 413
    answer = client._client.post(
        f"{guarded.url}/v1/chat/completions",
        content=(b"x" * 1000 for _ in range(20)),
        headers={"authorization": "Bearer first", "content-type": "application/json"},
    )
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "too_large"
    assert client.models.list().data


def test_pages_of_allowed_origins_may_ask(guarded):
    """CORS: the preflight needs no key; errors have the header too, so that a page can read them."""
    http = guarded.client()._client
    for origin, allowed in (("https://b.example", "https://b.example"), ("https://c.example", None)):
        asked = {"origin": origin, "access-control-request-method": "POST"}
        preflight = http.options(f"{guarded.url}/v1/chat/completions", headers=asked)
        assert preflight.headers.get("access-control-allow-origin") == allowed
        refused = http.post(f"{guarded.url}/v1/chat/completions", headers={"origin": origin}, json={})
        assert refused.status_code == 401 and refused.headers.get("access-control-allow-origin") == allowed


def test_a_proxy_may_cut_the_root_path_or_not(guarded):
    """`--root-path`: routes, keys and the schema are right with it and without it."""
    http = guarded.client()._client
    for path in ("/v1/models", "/speech/v1/models"):
        assert http.get(guarded.url + path).status_code == 401
        assert http.get(guarded.url + path, headers={"authorization": "Bearer second"}).status_code == 200
    assert json.loads(guarded.get("/openapi.json"))["servers"] == [{"url": "/speech"}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "70000"], "--port: must be at most 65535"),
        (["--url", "somewhere"], "--url: must be HOST:PORT"),
        (["--api-key-file", "/dev/null"], "--api-key-file: holds no key"),
        (["--api-key-file", "/nowhere"], "--api-key-file: cannot be read"),
        (["--ssl-keyfile", "/dev/null"], "--ssl-keyfile: needs --ssl-certfile"),
        (["--http-max-input-size", "0"], "--http-max-input-size: must be a whole number above 0"),
    ],
)
def test_bad_options_are_one_line(options, said, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(options)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and said in error and error.count("\n") == 1


def test_the_document_lists_options_and_fields():
    """docs/openai.md names every option, and every field that can be honoured."""
    text = (ROOT / "docs/openai.md").read_text(encoding="utf-8")
    options = {f"--{name.replace('_', '-')}" for name in vars(parse([])) if name != "keys"}
    fields = {name for name, field in ChatRequest.model_fields.items() if field.annotation is not type(None)}
    assert not [name for name in options if f"`{name}`" not in text]
    assert not [name for name in fields if not re.search(rf"`{name}[`.]", text)]
