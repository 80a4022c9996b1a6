"""What an error may tell a client."""

from __future__ import annotations

import io

import pytest

from python_backends.config.errors import InvalidRequest, OmniError, StageFailed


@pytest.mark.parametrize(
    "said",
    [
        f"Error opening {io.BytesIO()!r}: not recognised",
        f"cannot use {object()!r}",
        f"broken at {hex(id(object()))}",
        "cannot connect to ipc:///run/omni/engine-0.sock",
        "cannot connect to tcp://10.0.0.3:5555",
        "[Errno 2] No such file or directory: '/opt/models/omni/config.json'",
        "File /usr/lib/python3.11/site-packages/torch/nn.py, line 3",
    ],
    ids=["file object", "object", "address", "socket", "host", "path", "source"],  # the same in every process
)
@pytest.mark.parametrize(
    "make", [OmniError, StageFailed, lambda said: InvalidRequest("messages", said)], ids=["omni", "stage", "request"]
)
def test_no_error_to_a_client_carries_reprs_addresses_or_paths_of_this_host(said, make):
    text = str(make(said))
    assert not any(word in text for word in ("0x", "<", "/opt", "/usr", "ipc:", "10.0.0.3", "/run")), text


@pytest.mark.parametrize(
    "said",
    [
        "the host 'images.example.com' is not on this server's list",
        "must be a data:, http:, https: or file: URL",
        "https://example.com/a/b/c.png answered 404",
        "file:///media/a.png cannot be read",
        "takes A-Z, a-z, 0-9, + and /",
        "is 64 x 48 pixels, 3/4 of it and/or less",
    ],
)
def test_a_clients_own_words_stay(said):
    assert str(OmniError(said)) == said
