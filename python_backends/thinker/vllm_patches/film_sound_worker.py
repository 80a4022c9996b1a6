"""What every vLLM worker imports: which sound belongs to which film.

Around: vLLM 0.32. No longer needed when `test_two_heard_films_and_sounds_between_them` passes without it.
"""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.qwen3_omni_moe_thinker import Qwen3OmniMoeThinkerForConditionalGeneration


class FilmSoundWorker:
    """vLLM's `worker_extension_cls`, which brings this module into the process of each worker."""


def _tracks_of_films(self: Any, features: list[Any]) -> tuple[dict[int, int], set[int]]:
    """Mel frames of the track at the offset of each film that is heard, and those offsets.

    vLLM 0.32 takes the first sound for the first film, the second for the second: wrong where other sounds stand beside
    them. `film_sound.interleave` gives a film and its track the same offset.
    """
    films = {
        feature.mm_position.offset
        for feature in features
        if feature.modality == "video" and bool(feature.data["use_audio_in_video"].data)
    }
    lengths = {
        feature.mm_position.offset: int(feature.data["audio_feature_lengths"].data)
        for feature in features
        if feature.modality == "audio" and feature.mm_position.offset in films
    }
    return lengths, set(lengths)


Qwen3OmniMoeThinkerForConditionalGeneration._get_audio_for_video_mapping = _tracks_of_films
