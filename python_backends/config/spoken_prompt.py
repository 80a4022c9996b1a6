"""Which tokens of a prompt the Talker hears: the Thinker must know, to refuse what does not fit at the door."""

from __future__ import annotations

import numpy as np

HEADER_ROWS = 3
PAD_ROWS = 4
# Behind the user's rows: the assistant's header, pads and the mark that speech begins.
TAIL_ROWS = HEADER_ROWS + PAD_ROWS + 1


def user_rows(ids: np.ndarray, im_start: int, user: int) -> np.ndarray:
    """Mask, bool [p], of the ids in segments whose role is the user's, the segment's start token included."""
    starts = np.where(ids == im_start, np.arange(len(ids)), -1)
    segment = np.maximum(np.maximum.accumulate(starts), 0)
    role = ids[np.minimum(segment + 1, len(ids) - 1)]
    return role == user
