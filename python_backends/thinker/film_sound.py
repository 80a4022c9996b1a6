"""Films that are heard: their sound tracks interleaved with their frames, as the checkpoint's processor does it.

vLLM's own way needs a sound track in every film of a request and no other sound. So the tracks go through its processor
as sounds of their own, and are woven into their films here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class MediaIds:
    """Placeholder ids, and those around a sound."""

    audio: int
    image: int
    video: int
    audio_start: int
    audio_end: int

    @property
    def placeholders(self) -> tuple[int, int, int]:
        """In the order of MEDIA_KINDS."""
        return self.audio, self.image, self.video

    @classmethod
    def of(cls, thinker: Any) -> MediaIds:
        """From the checkpoint's `thinker_config`."""
        return cls(
            thinker.audio_token_id,
            thinker.image_token_id,
            thinker.video_token_id,
            thinker.audio_start_token_id,
            thinker.audio_end_token_id,
        )


def with_tracks(ids: list[int], heard: list[bool], media_ids: MediaIds) -> list[int]:
    """A sound's placeholder after each film, of the order of the prompt, that is `heard`."""
    found, films = [], iter(heard)
    follows = False
    for token in ids:
        found.append(token)
        if follows:
            # `token` is the film's end.
            found += [media_ids.audio_start, media_ids.audio, media_ids.audio_end]
        follows = token == media_ids.video and next(films)
    return found


def interleave(engine_input: Any, heard: list[bool], seconds: list[float], rate: int, media_ids: MediaIds) -> None:
    """Weave the tracks, which stand behind their films, into them; the prompt keeps its length.

    `seconds`: between two temporal patches of each film. `rate`: positions a second, which are also the sounds' ids a
    second.
    """
    ids, places = np.array(engine_input["prompt_token_ids"]), engine_input["mm_placeholders"]
    items = engine_input["mm_kwargs"]
    audios = {place.offset: at for at, place in enumerate(places.get("audio", []))}
    for at, is_heard in enumerate(heard):
        if not is_heard:
            continue
        film = places["video"][at]
        # Between them stand the film's end and the sound's start.
        track_at = audios[film.offset + film.length + 2]
        track = places["audio"][track_at]
        patches = int(items["video"][at]["video_grid_thw"].data.reshape(-1)[0])
        times = np.repeat(np.arange(patches) * seconds[at] * rate, film.length // patches)
        # By time; of a frame and a sound at the same time the frame comes first.
        order = np.argsort(np.concatenate([times, np.arange(track.length)]), kind="stable")
        body = np.where(order < film.length, media_ids.video, media_ids.audio)
        film_end = ids[film.offset + film.length]
        woven = np.concatenate([[media_ids.audio_start], body, [media_ids.audio_end]])
        ids[film.offset : film.offset + len(woven) + 1] = [*woven, film_end]
        for kind, number, token in (("video", at, media_ids.video), ("audio", track_at, media_ids.audio)):
            mask = torch.from_numpy(woven == token)
            places[kind][number] = replace(places[kind][number], offset=film.offset, length=len(woven), is_embed=mask)
        item = items["video"][at]
        name = "use_audio_in_video"
        items["video"][at] = type(item)({**item, name: replace(item[name], data=torch.tensor(True))})
    engine_input["prompt_token_ids"] = ids.tolist()
    # Of two features at one place the film comes first.
    engine_input["mm_placeholders"] = {kind: places[kind] for kind in ("image", "video", "audio") if kind in places}
