"""What every decoder of bytes from strangers has in common: which containers PyAV may open, and for how long."""

from __future__ import annotations

import io
import time

from python_backends.config.errors import InvalidRequest

# Self-contained formats only. Playlists (HLS, concat, DASH) would have FFmpeg open files and addresses they name.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpegts,mpeg,mpegvideo,asf,gif,"
    "ogg,wav,w64,mp3,aac,flac,aiff,au,amr,caf"
)
_TAKEN = {
    "audio": "WAV, FLAC, MP3, Ogg, Opus, AAC, M4A, AIFF, AU, CAF, AMR and WMA, and the sound tracks of films",
    "video": "MP4, MOV, MKV, WebM, AVI, FLV, MPEG, MPEG-TS, WMV, Ogg and GIF",
}


class Clock:
    """A limit on how long one item may be decoded."""

    def __init__(self, field: str, seconds: float) -> None:
        self._field = field
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raises InvalidRequest when the time is over; called between frames."""
        if time.monotonic() > self._end:
            raise InvalidRequest(self._field, f"takes longer than {self._seconds:g} s to decode")


def open_container(data: bytes, field: str, kind: str):
    """An open container, to be closed by the caller. `kind`: "audio" or "video". Raises InvalidRequest on `field`."""
    import av

    try:
        return av.open(io.BytesIO(data), mode="r", options={"format_whitelist": _FORMATS, "protocol_whitelist": "none"})
    except (av.FFmpegError, ValueError):
        # What FFmpeg says names no file of the client's, and sometimes objects of this process.
        raise InvalidRequest(
            field, f"is not {kind} of a known format, or is damaged: taken are {_TAKEN[kind]}"
        ) from None


def first_stream(container, kind: str, field: str):
    """The first stream of `kind`, "audio" or "video", of an open container, None if there is none; the cover of a
    record is no video. Raises InvalidRequest on `field` for a codec that FFmpeg does not know.
    """
    from av.stream import Disposition

    for stream in getattr(container.streams, kind):
        if not stream.disposition & Disposition.attached_pic:
            if stream.codec_context is None:
                raise InvalidRequest(field, f"holds {kind} in a code that this server does not know")
            return stream
    return None
