"""The module of a description, whatever its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from tensornet_attn.models.classifier import SequenceClassifier
from tensornet_attn.models.language import LanguageModel
from tensornet_attn.models.model import Model
from tensornet_attn.models.read import ModelSpec, load
from tensornet_attn.models.seq2seq import Seq2Seq
from tensornet_attn.spec.sources import Source

if TYPE_CHECKING:
    import torch

KINDS: dict[str, type[Model]] = {cls.kind: cls for cls in (LanguageModel, SequenceClassifier, Seq2Seq)}


class MakeOptions(TypedDict, total=False):
    """What `make` takes besides the description."""

    backend: str
    device: torch.device | str | None
    dtype: torch.dtype | None


def make(source: Source | ModelSpec, **options: Unpack[MakeOptions]) -> Model:
    """A LanguageModel, SequenceClassifier or Seq2Seq, as the description says; `options`: backend, device, dtype.

    Raises DesignError with everything wrong.
    """
    spec = load(source)
    return KINDS[spec.kind](spec, **options)
