"""What a client may ask about the server: `{"describe": true}`."""

from __future__ import annotations

from python_backends.config.deploy import DeployConfig
from python_backends.orchestrator.request import AUDIO_FORMATS, FIELDS, MAX_REQUEST_BYTES


def describe(deploy: DeployConfig, stages: dict[str, dict]) -> dict:
    """`stages`: what each stage says of itself."""
    keys = deploy.keys
    return {
        "modalities": list(deploy.modalities),
        "voices": stages.get("talker", {}).get("voices", []),
        "audio_formats": list(AUDIO_FORMATS),
        "fields": list(FIELDS),
        "limits": {
            "request_bytes": MAX_REQUEST_BYTES,
            "in_flight": keys.max_in_flight,
            "queued": keys.max_queued,
            "timeouts": {name: getattr(keys.timeouts, name) for name in ("queue_s", "first_audio_s", "total_s")},
        },
        "stages": stages,
    }
