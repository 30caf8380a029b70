"""Layers that other packages wrote, beside the designs that compute the same."""
