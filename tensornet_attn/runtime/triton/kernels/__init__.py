"""Triton kernels that are written by hand, and the functions that launch them: emitted files carry them."""
