"""The Talker's prompt layout: which rows are computed before the first frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from python_backends.config.errors import InvalidRequest
from python_backends.config.multimodal import MultimodalPrompt
from python_backends.config.spoken_prompt import HEADER_ROWS, PAD_ROWS, user_rows
from python_backends.talker.model.shapes import TalkerShape
from python_backends.talker.rope_index import rope_positions


@dataclass(frozen=True)
class TalkerPrompt:
    """Rows before the first text row, which is the first decode step's own input.

    `text_ids` int32 [rows]: id whose projected embedding the row holds, -1 for a media row. `codec_ids` int32 [rows]:
    codec embedding added to the row, -1 for none. `media_rows` int64 [m]: rows that hold `hidden_rows` [m, hidden]
    through the hidden projection. `positions` float32 [3, rows]; a later row r sits at r + `position_delta`.
    `first_text` int32: prompt ids behind the assistant header, spoken before the answer.
    """

    text_ids: np.ndarray
    codec_ids: np.ndarray
    media_rows: np.ndarray
    hidden_rows: np.ndarray
    positions: np.ndarray
    position_delta: float
    first_text: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.text_ids)


@dataclass(frozen=True)
class PrefillPart:
    """Rows `start` to `start + count` of a prompt, for one slot."""

    slot: int
    prompt: TalkerPrompt
    start: int
    count: int


def build_prompt(
    prompt_ids: np.ndarray, media: MultimodalPrompt | None, speaker_code: int, shape: TalkerShape
) -> TalkerPrompt:
    """Lay out user segments, the last assistant header, pads and the codec control row, as transformers does.

    Raises InvalidRequest when there is no assistant header, or when media rows and placeholders do not match.
    """
    ids = np.asarray(prompt_ids, dtype=np.int64)
    token = shape.ids
    if ids.ndim != 1 or len(ids) == 0 or ids.min() < 0 or ids.max() >= shape.text_vocab:
        raise InvalidRequest("prompt_ids", f"must be ids from 0 to {shape.text_vocab - 1}")
    headers = np.flatnonzero((ids[:-1] == token.im_start) & (ids[1:] == token.assistant))
    if len(headers) == 0 or len(ids) - headers[-1] < HEADER_ROWS:
        raise InvalidRequest("prompt_ids", "must end with an assistant header of three ids")
    header = int(headers[-1])

    user = np.flatnonzero(user_rows(ids, token.im_start, token.user))
    user_ids = ids[user]
    is_media = np.isin(user_ids, (token.audio, token.image, token.video))
    media_rows = np.flatnonzero(is_media)
    hidden_rows = np.zeros((0, shape.thinker_hidden), dtype=np.float32)
    if len(media_rows):
        hidden_rows = _hidden_of(user[media_rows], media, shape)

    control = [token.codec_nothink, token.codec_think_bos, token.codec_think_eos, speaker_code, token.codec_pad]
    tail_text = [*ids[header : header + HEADER_ROWS], *[token.tts_pad] * PAD_ROWS, token.tts_bos]
    tail_codec = [*[-1] * HEADER_ROWS, *control]
    layout = np.concatenate([user_ids, np.full(len(tail_text) + 1, token.tts_pad)])
    positions, delta = rope_positions(layout, media, shape)
    return TalkerPrompt(
        text_ids=np.concatenate([np.where(is_media, -1, user_ids), tail_text]).astype(np.int32),
        codec_ids=np.concatenate([np.full(len(user), -1), tail_codec]).astype(np.int32),
        media_rows=media_rows,
        hidden_rows=hidden_rows,
        positions=positions[:, :-1].copy(),
        position_delta=delta,
        first_text=ids[header + HEADER_ROWS :].astype(np.int32),
    )


def _hidden_of(positions: np.ndarray, media: MultimodalPrompt | None, shape: TalkerShape) -> np.ndarray:
    """Rows of `media` for the prompt positions given, in their order."""
    if media is None:
        raise InvalidRequest("multimodal", f"the prompt has {len(positions)} media rows and no hidden rows came")
    rows = np.asarray(media.hidden_rows)
    if rows.ndim != 2 or rows.shape != (len(media.positions), shape.thinker_hidden):
        raise InvalidRequest("multimodal.hidden_rows", f"must be [{len(media.positions)}, {shape.thinker_hidden}]")
    if rows.dtype.kind != "f" or not np.isfinite(rows).all():
        raise InvalidRequest("multimodal.hidden_rows", "must be finite floats")
    index = {int(position): row for row, position in enumerate(media.positions)}
    missing = [int(position) for position in positions if int(position) not in index]
    if missing:
        raise InvalidRequest("multimodal.positions", f"no hidden row for prompt position {missing[0]}")
    return rows[[index[int(position)] for position in positions]]
