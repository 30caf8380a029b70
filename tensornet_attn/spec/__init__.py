"""Reads YAML into a Design: parsing, locations, expressions, leg arithmetic, the shipped designs, the JSON schema."""

from tensornet_attn.spec.design import Design, json_schema
from tensornet_attn.spec.read import ReadDesign, load, read, read_text

__all__ = ["Design", "ReadDesign", "json_schema", "load", "read", "read_text"]
