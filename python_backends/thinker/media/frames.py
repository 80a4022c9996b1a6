"""Which frames of a video the model sees, and on which grid of time.

The model's positions advance by `positions_per_second` (13 as published); a temporal patch of two frames stands at a
multiple of its length. vLLM keeps positions as integers where `transformers` keeps fractions, so frames are taken at a
step for which a patch's length is a whole number of positions: then both agree. With an interleaved sound track it is a
whole number of seconds, the only lengths for which vLLM orders sound and frames as it numbers them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.options import MediaOptions

TEMPORAL_PATCH = 2
# Of raw frames that do not say; the checkpoint's processor assumes the same.
DEFAULT_TENSOR_FPS = 1.0


@dataclass(frozen=True)
class Sampling:
    """`fps` frames a second or `num_frames` in all, neither for the server's default number. Rates are rounded to the
    grid of time: at most `2 * positions_per_second` frames a second, 2 with a sound track.
    """

    fps: float | None
    num_frames: int | None
    with_sound: bool
    positions_per_second: int

    def plan(self, seconds: float, most: int, field: str, options: MediaOptions) -> tuple[np.ndarray, float]:
        """Times float64 [t] from the start, in seconds, of the frames to take of a film that lasts `seconds`, and their
        rate, exactly what the processor must be told. A default number is cut to `most`.

        Raises InvalidRequest on `field` for too many.
        """
        unit = self.positions_per_second if self.with_sound else 1
        # Half a position is the finest step between two frames of a patch.
        steps = round(TEMPORAL_PATCH * self.positions_per_second * seconds, 6)
        if self.fps is not None:
            step = max(1, round(steps / seconds / self.fps / unit)) * unit
            wanted = int(steps / step + 1e-6)
        else:
            wanted = min(self.num_frames or options.num_frames, most)
            # Without sound the number is kept and the step rounded down; with it the whole track must be covered.
            rounded = -(-steps // (wanted * unit)) if self.with_sound else steps // wanted
            step = max(1, int(rounded)) * unit
            if self.with_sound or wanted * step > steps:
                wanted = int(steps / step + 1e-6)
        if wanted > options.max_frames:
            raise InvalidRequest(field, f"asks for {wanted} frames, more than {options.max_frames}")
        times = np.arange(max(TEMPORAL_PATCH, wanted)) * (step / (TEMPORAL_PATCH * self.positions_per_second))
        return times, self._told(step)

    def frames_of_tensor(self, total: int, field: str, options: MediaOptions) -> int:
        """How many of `total` raw frames are taken. Raises InvalidRequest on `field` for too many."""
        wanted = min(self.num_frames or total, total)
        if wanted > options.max_frames:
            raise InvalidRequest(field, f"asks for {wanted} frames, more than {options.max_frames}")
        return wanted

    def plan_tensor(self, total: int, field: str, options: MediaOptions) -> tuple[np.ndarray, float]:
        """Indices int64 [t] of the raw frames to take, and their rate as of `plan`. `fps` is here the rate that the
        frames have and `num_frames` how many of them are taken.
        """
        wanted = self.frames_of_tensor(total, field, options)
        rate = (self.fps or DEFAULT_TENSOR_FPS) * wanted / total
        indices = np.linspace(0, total - 1, wanted).round().astype(np.int64)
        return indices, self._told(max(1, round(TEMPORAL_PATCH * self.positions_per_second / rate)))

    def _told(self, step: int) -> float:
        """The rate whose patch length, in float32 seconds, is not below `step` positions: vLLM rounds down."""
        length = np.float32(step / self.positions_per_second)
        if float(length) * self.positions_per_second < step:
            length = np.nextafter(length, np.float32(np.inf))
        return TEMPORAL_PATCH / float(length)
