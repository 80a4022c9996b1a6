"""The media that a request names, before they are fetched."""

from __future__ import annotations

from dataclasses import dataclass

MEDIA_KINDS = ("audio", "image", "video")


@dataclass(frozen=True)
class MediaRef:
    """One audio, image or video that a message names.

    `field`: where it stands, such as `messages[0].content[1].image_url.url`. `source`: a web or data URL or a path;
    None when the content is raw tensor number `tensor` of its kind. `fps`, `num_frames`: how frames are sampled from a
    video. `use_audio`: the video's sound track is heard too.
    """

    kind: str
    field: str
    source: str | None = None
    tensor: int | None = None
    fps: float | None = None
    num_frames: int | None = None
    use_audio: bool = False
