"""Kernels behind one interface: plain torch everywhere, Triton on CUDA."""
