"""Prompts that vLLM computes before the first client's, in every size for which its MoE kernel is another one.

vLLM's fused MoE picks its tiles by the number of rows of a step and Triton compiles each choice when it is first used:
measured on an H200, the first 64 requests waited more than a second for that. Decode batches are captured at start and
need no more; prefill batches are covered here.
"""

from __future__ import annotations

# Rows at which vLLM's tuned tables for H100 and H200 change their tiles, beyond what the graphs of decode batches hold.
MOE_ROWS = (128, 256, 512, 1024, 1536, 2048, 3072, 4096)


def warm_up_rows(most: int) -> list[int]:
    """Rows of the steps to run, at most `most` in one step: each entry of the table even and odd, and the largest.

    Triton compiles a kernel for integers divisible by 16 and one for the others, and a step of n rows has n times
    `num_experts_per_tok` (8) of them.
    """
    sizes = {rows + odd for rows in MOE_ROWS for odd in (0, 1)} | {most - 1, most}
    return sorted(size for size in sizes if 1 < size <= most)


def prompts_of(rows: int, longest: int) -> list[list[int]]:
    """Prompts of `rows` ids together, none longer than `longest`."""
    lengths = [longest] * (rows // longest) + ([rows % longest] if rows % longest else [])
    return [[1 + at % 256 for at in range(length)] for length in lengths]
