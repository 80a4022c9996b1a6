"""What media a Thinker takes, from where, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class MediaOptions:
    """Sources and limits. Base64 data and raw tensors are always allowed; the web and local files are off by default.

    - `allowed_media_domains`: host names that http(s) URLs and their redirects may name, exactly.
    - `allow_private_addresses`: those hosts may resolve to private, loopback or link-local addresses.
    - `allowed_local_media_path`: directory that `file://` URLs may read from.
    - `max_audios`, `max_images`, `max_videos`: of one request; 0 switches a kind off. Sound tracks of videos count as
      audios.
    - `max_bytes`: of one encoded item. `max_audio_seconds`, `max_video_seconds`: of one item.
    - `max_image_pixels`: of one image. `max_video_pixels`: of all frames taken from one video, or sent as raw ones.
    - `num_frames`: taken from a video that does not say; `max_frames` the most it may ask for.
    - `workers`: threads that fetch and decode. `max_waiting`: requests with media that wait for one or hold one.
    - `fetch_seconds`, `decode_seconds`: the longest one item may take.
    """

    allowed_media_domains: tuple[str, ...] = ()
    allow_private_addresses: bool = False
    allowed_local_media_path: str | None = None
    max_audios: int = 8
    max_images: int = 16
    max_videos: int = 4
    max_bytes: int = 64 << 20
    max_audio_seconds: float = 1200.0
    max_video_seconds: float = 1200.0
    max_image_pixels: int = 50_000_000
    max_video_pixels: int = 100_000_000
    num_frames: int = 16
    max_frames: int = 256
    workers: int = 2
    max_waiting: int = 32
    fetch_seconds: float = 10.0
    decode_seconds: float = 30.0

    def __post_init__(self) -> None:
        domains = self.allowed_media_domains
        if isinstance(domains, str) or not all(isinstance(name, str) and name for name in domains):
            raise ValueError(f"media.allowed_media_domains: must be a list of host names, got {domains!r}")
        object.__setattr__(self, "allowed_media_domains", tuple(name.lower().rstrip(".") for name in domains))
        if self.allowed_local_media_path is not None and not Path(self.allowed_local_media_path).is_dir():
            raise ValueError(f"media.allowed_local_media_path: {self.allowed_local_media_path!r} is not a directory")
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name.startswith("max_") or item.name in ("num_frames", "workers"):
                low = 0 if item.name in ("max_audios", "max_images", "max_videos") else 1
                if isinstance(value, bool) or not isinstance(value, (int, float)) or value < low:
                    raise ValueError(f"media.{item.name}: must be a number of at least {low}, got {value!r}")

    def limit(self, kind: str) -> int:
        """How many of `kind`, "audio", "image" or "video", a request may have."""
        return getattr(self, f"max_{kind}s")


def media_options(values: dict) -> MediaOptions:
    """Build from a mapping. Raises ValueError that names an unknown key and the allowed ones."""
    known = [item.name for item in fields(MediaOptions)]
    for key in values:
        if key not in known:
            raise ValueError(f"media.{key}: unknown option; allowed: {', '.join(known)}")
    return MediaOptions(**values)
