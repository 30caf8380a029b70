"""Kernels in Triton: whether they can run here, with which tiles, and what they need of a GPU."""
