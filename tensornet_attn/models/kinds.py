"""The module of a description, whatever its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from tensornet_attn.errors import nearest
from tensornet_attn.models.classifier import SequenceClassifier
from tensornet_attn.models.language import LanguageModel
from tensornet_attn.models.model import Model
from tensornet_attn.models.override import override_keys
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.models.seq2seq import Seq2Seq
from tensornet_attn.models.sources import load
from tensornet_attn.spec.sources import Source

if TYPE_CHECKING:
    import torch

KINDS: dict[str, type[Model]] = {cls.kind: cls for cls in (LanguageModel, SequenceClassifier, Seq2Seq)}


class MakeOptions(TypedDict, total=False):
    """What `make` takes besides the description and overrides."""

    backend: str
    device: torch.device | str | None
    dtype: torch.dtype | None


def make(
    source: Source | ModelSpec,
    *,
    backend: str = "auto",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **overrides: Any,
) -> Model:
    """A LanguageModel, SequenceClassifier or Seq2Seq, as the description and the overrides say; see `load`.

    Raises DesignError with everything wrong, TypeError for a keyword that no model has.
    """
    for name in overrides:
        if name not in override_keys():
            hint = nearest(name, (*MakeOptions.__annotations__, *sorted(override_keys())))
            raise TypeError(f"make() got an unexpected keyword argument '{name}'; {hint}")
    spec = load(source, **overrides)
    return KINDS[spec.kind](spec, backend=backend, device=device, dtype=dtype)
