"""What the client library makes of a server's errors."""

import pytest

from client.streaming import _client_error
from python_backends.config.errors import Overloaded


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        ("[invalid_request] seed: must be an integer", "invalid_request", "seed: must be an integer"),
        ("in ensemble, [timeout] queue_s: over", "timeout", "queue_s: over"),
        ("something of Triton's own", "server", "something of Triton's own"),
    ],
)
def test_an_error_is_a_code_and_a_reason(message, code, reason):
    error = _client_error(message)
    assert (error.code, str(error), error.retry_after_s) == (code, reason, None)


@pytest.mark.parametrize(
    "message",
    [
        "Request for unknown model: 'qwen3_omni' has no available versions",
        "Server not ready",
        "in-flight: Server is stopping, stopped accepting new inference requests",
        "Request for unknown model: 'qwen3_omni' version 1 is not ready",
    ],
)
def test_tritons_refusals_during_a_drain_are_shutting_down(message):
    """Operating, new requests during drain: Triton's own words have the contract's code."""
    error = _client_error(message)
    assert error.code == "shutting_down" and message in str(error)


def test_when_to_retry_is_a_number():
    """Operating, `Retry-After`: what the server writes, the library reads; the shape is that of every error."""
    error = _client_error(f"[overloaded] {Overloaded('4 requests in flight and 2 waiting', 3)}")
    assert (error.code, error.retry_after_s) == ("overloaded", 3)
    assert str(error) == "4 requests in flight and 2 waiting; retry_after_s=3"
    assert _client_error(f"[overloaded] {Overloaded('the talker holds 64 streams')}").retry_after_s is None
