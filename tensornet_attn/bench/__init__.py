"""Benchmarks of compiled designs against handwritten PyTorch, interleaved in one process."""
