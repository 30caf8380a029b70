"""What all models share: a description, positions, cost, first values, and what they are given checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.models.block import Block, Losses, gathered
from tensornet_attn.models.config import Config
from tensornet_attn.models.cost import ModelCost
from tensornet_attn.models.initial import initialise
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.models.sources import load
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.runtime.positions import sinusoid
from tensornet_attn.spec.sources import Source

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

Tensor = torch.Tensor


class Positions(nn.Module):
    """Adds positions, learned or sinusoid, where the model has them, and drops out."""

    def __init__(self, config: Config, length: int, **new: Any):
        super().__init__()
        self.kind, self.length = config.positions, length
        self.dropout = nn.Dropout(config.dropout)
        if self.kind == "learned":
            self.table = nn.Parameter(torch.zeros(length, config.width, **new))

    def forward(self, x: Tensor) -> Tensor:
        """x, and the result, [batch, n, width]. Raises InputError."""
        n = x.shape[1]
        if self.kind == "learned":
            if n > self.length:
                raise InputError(f"{n} positions given; the model has learned {self.length}.")
            x = x + self.table[:n]
        elif self.kind == "sinusoid":
            x = x + sinusoid(torch.arange(n, device=x.device), x.shape[2], x.dtype)
        return self.dropout(x)


def check_tokens(name: str, tokens: Tensor, key_mask: Tensor | None, mask_name: str = "key_mask") -> None:
    """[batch, n], integers, and a boolean mask of the same shape. Raises InputError."""
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise InputError(f"'{name}' is {_given(tokens)}; give [batch, n], torch.int64.")
    _check_mask(mask_name, key_mask, tokens.shape)


def check_numbers(name: str, numbers: Tensor, key_mask: Tensor | None, features: int) -> None:
    """[batch, n, features], floating point, and a boolean mask [batch, n]. Raises InputError."""
    right = isinstance(numbers, torch.Tensor) and numbers.dim() == 3 and numbers.shape[2] == features
    if not right or not numbers.is_floating_point():
        raise InputError(f"'{name}' is {_given(numbers)}; give [batch, n, {features}], torch.float32.")
    _check_mask("key_mask", key_mask, numbers.shape[:2])


def _check_mask(name: str, mask: Tensor | None, shape: torch.Size) -> None:
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.shape != shape:
        raise InputError(f"'{name}' is {_given(mask)}; give {list(shape)}, torch.bool, true = a token.")


def _given(value: object) -> str:
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


class Model(nn.Module, ABC):
    """A model made of a description: a path, YAML text, a dict, a ModelSpec, or the keys of `model:` by name.

    `spec` is the description; `backend`, `device` and `dtype` are those of `ta.compile`. Raises DesignError, and
    InputError for a model of another kind.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        spec: Source | ModelSpec | None = None,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **config: Any,
    ):
        super().__init__()
        if (spec is None) != bool(config):
            raise InputError(f"{type(self).__name__} takes a description or the keys of one, e.g. vocabulary=256.")
        self.spec = load({"tensornet": 1, "model": {"kind": self.kind, **config}} if spec is None else spec)
        if self.spec.kind != self.kind:
            raise InputError(f"this is a {self.spec.kind}; {type(self).__name__} makes a {self.kind}.")
        self.scale = self.spec.embedding_scale
        new = {"device": device, "dtype": dtype}
        self._make(**new)
        for stack, blocks in self.spec.stacks.items():
            made = (Block(block, self.spec.config, backend, **new) for block in blocks)
            self.add_module(stack, nn.ModuleList(made))
        initialise(self)

    @abstractmethod
    def _make(self, **new: Any) -> None:
        """Makes what is no stack: embeddings, final norms, output."""

    def _through(self, stack: str, x: Tensor, found: Losses | None, *seen: Tensor | None) -> Tensor:
        """x after all blocks of a stack, which see masks and a source; `found` takes their losses, None for none."""
        wanted, all_found = found is not None, {} if found is None else found
        for place, block in enumerate(getattr(self, stack)):
            x = gathered(block(x, *seen, losses=wanted), f"{stack}.{place}", all_found)
        return x

    def to_yaml(self, whole: bool = False) -> str:
        """The model as YAML text that reads back to the same model; see `ModelSpec.to_yaml`."""
        return self.spec.to_yaml(whole)

    def cost(self, n: int | None = None, batch: int = 1, m: int | None = None, dtype: str = "float32") -> ModelCost:
        """MACs and parameters at n positions; see `ModelCost`."""
        return self.spec.cost(n, batch, m, dtype)

    def tp_plan(self, processes: int | None = None) -> dict[str, ParallelStyle]:
        """A style for each design by its name in the model, such as `layers.0.mixer.design`, for `parallelize_module`.

        See `CompiledDesign.tp_plan`. Raises InputError where a design cannot be split.
        """
        styles = {}
        for name, part in self.named_modules():
            if isinstance(part, CompiledDesign):
                try:
                    styles[name] = part.tp_plan(processes).style
                except InputError as error:
                    raise InputError(f"{name}: {error}") from error
        return styles

    def extra_repr(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.spec.legs.items())
        return f"{self.spec.name}: {sizes}"
