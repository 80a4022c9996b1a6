"""Qwen3-Omni on Triton Inference Server: the three stages and what joins them."""
