"""Benchmarks of compiled designs against hand-written PyTorch, interleaved in one process."""
