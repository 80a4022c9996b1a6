"""Streaming client of the `qwen3_omni` model."""
