"""Triton kernels: availability, tile configurations, and resource usage."""
