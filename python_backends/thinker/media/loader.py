"""All media of a request, decoded in the order of its prompt."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from python_backends.config.errors import InvalidRequest
from python_backends.config.media_inputs import MediaTensors
from python_backends.thinker.media.audio import check_samples, decode_audio, samples_from_tensor
from python_backends.thinker.media.frames import Sampling
from python_backends.thinker.media.image import check_pixels, decode_image, image_from_tensor
from python_backends.thinker.media.options import MediaOptions
from python_backends.thinker.media.refs import MEDIA_KINDS, MediaRef
from python_backends.thinker.media.sources import read_source
from python_backends.thinker.media.video import Video, check_frames, decode_video, video_from_tensor


@dataclass
class LoadedMedia:
    """`audios`: float32 [n] at 16 kHz, with sound tracks of videos; `images`: RGB. `notes`: what was done otherwise
    than asked, for the client.
    """

    audios: list[np.ndarray] = field(default_factory=list)
    images: list[Image.Image] = field(default_factory=list)
    videos: list[Video] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_refs(refs: list[MediaRef], tensors: MediaTensors, options: MediaOptions) -> None:
    """Raw tensors and combinations, before anything is read. Raises InvalidRequest.

    A tensor that no message names is called by the Triton input that it came in, such as `IMAGE[0]`.
    """
    used: dict[str, set[int]] = {kind: set() for kind in MEDIA_KINDS}
    for ref in refs:
        if ref.tensor is not None:
            given = len(getattr(tensors, ref.kind))
            if ref.tensor >= given:
                raise InvalidRequest(ref.field, f"there is no {ref.kind} tensor {ref.tensor}, {given} were sent")
            if ref.use_audio:
                raise InvalidRequest(ref.field, "raw frames have no sound track: use_audio_in_video must be false")
            _check_tensor(ref, tensors, options)
            used[ref.kind].add(ref.tensor)
    for kind in MEDIA_KINDS:
        for number in set(range(len(getattr(tensors, kind)))) - used[kind]:
            raise InvalidRequest(f"{kind.upper()}[{number}]", "is named by no message")
    films = [ref for ref in refs if ref.kind == "video"]
    if any(ref.use_audio for ref in films):
        for ref in films:
            if not ref.use_audio:
                raise InvalidRequest(ref.field, "use_audio_in_video must be the same for all videos of a request")


def _check_tensor(ref: MediaRef, tensors: MediaTensors, options: MediaOptions) -> None:
    if ref.kind == "audio":
        check_samples(*tensors.audio[ref.tensor], ref.field, options)
    elif ref.kind == "image":
        check_pixels(tensors.image[ref.tensor], ref.field, options)
    else:
        check_frames(tensors.video[ref.tensor], ref.field, Sampling(ref.fps, ref.num_frames, False, 1), options)


def load(refs: list[MediaRef], tensors: MediaTensors, options: MediaOptions, positions_per_second: int) -> LoadedMedia:
    """Read and decode. Raises InvalidRequest that names the field of the item at fault."""
    media = LoadedMedia()
    for ref in refs:
        if ref.kind == "audio":
            media.audios.append(_audio(ref, tensors, options))
        elif ref.kind == "image":
            media.images.append(_image(ref, tensors, options))
        else:
            sampling = Sampling(ref.fps, ref.num_frames, ref.use_audio, positions_per_second)
            video = _video(ref, tensors, sampling, options)
            media.videos.append(video)
            if video.sound is not None:
                media.audios.append(video.sound)
            elif ref.use_audio:
                media.notes.append(f"{ref.field}: has no sound track; it was shown as a silent film")
    return media


def _audio(ref: MediaRef, tensors: MediaTensors, options: MediaOptions) -> np.ndarray:
    if ref.tensor is not None:
        samples, rate = tensors.audio[ref.tensor]
        return samples_from_tensor(samples, rate, ref.field, options)
    return decode_audio(read_source(ref.source, ref.field, options), ref.field, options)


def _image(ref: MediaRef, tensors: MediaTensors, options: MediaOptions) -> Image.Image:
    if ref.tensor is not None:
        return image_from_tensor(tensors.image[ref.tensor], ref.field, options)
    return decode_image(read_source(ref.source, ref.field, options), ref.field, options)


def _video(ref: MediaRef, tensors: MediaTensors, sampling: Sampling, options: MediaOptions) -> Video:
    if ref.tensor is not None:
        return video_from_tensor(tensors.video[ref.tensor], ref.field, sampling, options)
    return decode_video(read_source(ref.source, ref.field, options), ref.field, sampling, options)
