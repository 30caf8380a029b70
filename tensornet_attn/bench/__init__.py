"""Measures compiled designs beside hand-written PyTorch, in one process, in turns."""
