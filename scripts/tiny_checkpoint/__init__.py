"""The parts of ``make_tiny_checkpoint.py``: configuration, tokenizer and processor files, weights."""
