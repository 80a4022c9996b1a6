"""The Talker on its device: sizes, weights, slot buffers, and the data that kernels and steps share."""
