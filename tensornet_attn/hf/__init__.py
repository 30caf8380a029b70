"""Designs in Hugging Face transformers: configuration, models and caches, registered with the Auto classes.

>>> from transformers import AutoModelForCausalLM
>>> config = config_of("mhsa_rope", vocabulary=32, length=16, width=16, legs={"h": 2})
>>> type(AutoModelForCausalLM.from_config(config)).__name__
'TensornetForCausalLM'
"""

from tensornet_attn.errors import MissingPartError

try:
    import transformers
except ImportError:
    raise MissingPartError("Hugging Face models require transformers: pip install 'tensornet-attn[hf]'.") from None

from tensornet_attn.hf.cache import DesignCacheLayer, TensornetCache, TensornetEncoderDecoderCache
from tensornet_attn.hf.config import TensornetConfig, config_of
from tensornet_attn.hf.modeling import (
    MODELS,
    TensornetForCausalLM,
    TensornetForConditionalGeneration,
    TensornetForMaskedLM,
    TensornetForSequenceClassification,
    TensornetPreTrainedModel,
    make,
)

__all__ = [
    "DesignCacheLayer", "TensornetCache", "TensornetConfig", "TensornetEncoderDecoderCache", "TensornetForCausalLM",
    "TensornetForConditionalGeneration", "TensornetForMaskedLM", "TensornetForSequenceClassification",
    "TensornetPreTrainedModel", "config_of", "make",
]  # fmt: skip

transformers.AutoConfig.register(TensornetConfig.model_type, TensornetConfig)
for auto, model in zip(
    (
        transformers.AutoModelForCausalLM,
        transformers.AutoModelForMaskedLM,
        transformers.AutoModelForSequenceClassification,
        transformers.AutoModelForSeq2SeqLM,
    ),
    MODELS,
    strict=True,
):
    auto.register(TensornetConfig, model)
