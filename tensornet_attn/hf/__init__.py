"""Designs in Hugging Face transformers."""

from tensornet_attn.errors import MissingPartError

try:
    import transformers  # noqa: F401
except ImportError:
    raise MissingPartError("Hugging Face models need transformers: pip install 'tensornet-attn[hf]'.") from None
