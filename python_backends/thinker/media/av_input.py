"""PyAV on bytes from strangers."""

from __future__ import annotations

import io

from python_backends.config.errors import InvalidRequest

# Self-contained formats only. Playlists (HLS, concat, DASH) would have FFmpeg open files and addresses they name.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpegts,mpeg,mpegvideo,asf,gif,"
    "ogg,wav,w64,mp3,aac,flac,aiff,au,amr,caf"
)


def open_container(data: bytes, field: str, kind: str):
    """An open container, to be closed by the caller. Raises InvalidRequest on `field`."""
    import av

    try:
        return av.open(io.BytesIO(data), mode="r", options={"format_whitelist": _FORMATS, "protocol_whitelist": "none"})
    except (av.FFmpegError, ValueError) as error:
        raise InvalidRequest(field, f"is not {kind} of a known format: {error}") from None
