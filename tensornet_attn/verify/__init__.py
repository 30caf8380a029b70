"""Compares compiled layers and kernels with the reference in float64, step by step, with gradients."""
