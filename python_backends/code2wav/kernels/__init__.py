"""Triton kernels of Code2Wav. Importing this package needs triton; only the CUDA path does."""
