"""Which kernel runs a layer, and with which tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MULTIPROCESSORS = 132


@dataclass(frozen=True)
class GemmTile:
    """Tile of `tap_gemm_kernel`: block sizes, warps, pipeline stages; `tma` loads through tensor descriptors.

    `cache`: ".ca" keeps the source's rows in L1 for the next tap, "" leaves them to L2.
    """

    block_m: int
    block_n: int
    block_k: int = 64
    warps: int = 8
    stages: int = 3
    tma: bool = False
    cache: str = ""


GENERAL_TILES = (
    GemmTile(128, 256, 64, 8, 3),
    GemmTile(128, 128, 64, 8, 3),
    GemmTile(64, 128, 64, 4, 4),
    GemmTile(64, 64, 64, 4, 4),
    GemmTile(64, 32, 64, 4, 4),
)


@dataclass(frozen=True)
class KernelPlan:
    """Choices by layer shape. A convolution is known by (taps, input channels).

    `gemm`: tiles of large products. `tiles`: for everything else, from large to small: the first one that gives every
    multiprocessor work is taken, so that short chunks spread out. `attention`: whether attention runs as our kernel.
    """

    gemm: Mapping[tuple[int, int], GemmTile] = field(default_factory=dict)
    tiles: tuple[GemmTile, ...] = GENERAL_TILES
    attention: bool = True

    def gemm_tile(self, taps: int, inner: int, outer: int, rows: int, heavy: bool = False) -> GemmTile:
        """Tile for a product of `rows` rows; `heavy`: the epilogue stores two results, too much beside a wide tile."""
        chosen = self.gemm.get((taps, inner))
        if chosen is not None and _programs(chosen, rows, outer) >= MULTIPROCESSORS:
            return chosen
        for tile in self.tiles:
            fits = tile.block_n < 2 * outer and not (heavy and tile.block_n > 128)
            if fits and _programs(tile, rows, outer) >= MULTIPROCESSORS:
                return tile
        return self.tiles[-1]


def _programs(tile: GemmTile, rows: int, outer: int) -> int:
    return -(-rows // tile.block_m) * -(-outer // tile.block_n)


# What a sweep over tiles found best at 64 x 25 frames on an H200.
H200_PLAN = KernelPlan(
    gemm={
        (7, 1024): GemmTile(128, 128, 64, 8, 4, tma=True),
        (2, 1536): GemmTile(128, 128, 64, 8, 4, tma=True),
        (7, 768): GemmTile(128, 256, 64, 8, 4, tma=True),
        (1, 768): GemmTile(128, 128, 64, 8, 4, tma=True),
        (2, 768): GemmTile(128, 128, 64, 4, 3),
        (7, 384): GemmTile(256, 128, 64, 8, 3, tma=True),
        (1, 384): GemmTile(128, 64, 64, 4, 4),
        (2, 384): GemmTile(128, 128, 64, 4, 3),
        (7, 192): GemmTile(128, 128, 64, 4, 3, cache=".ca"),
        (1, 192): GemmTile(128, 64, 64, 4, 4, cache=".ca"),
        (2, 192): GemmTile(128, 64, 64, 4, 4, cache=".ca"),
        (7, 96): GemmTile(256, 128, 64, 8, 3, tma=True),
        (1, 96): GemmTile(128, 32, 64, 4, 4, cache=".ca"),
    },
)

# Exact float32 products run without tensor cores and need twice the shared memory: small tiles.
FLOAT32_PLAN = KernelPlan(tiles=(GemmTile(64, 64, 32, 4, 2), GemmTile(32, 32, 32, 4, 2)), attention=False)
