"""Parts of `scripts/bench_thinker.py`."""
