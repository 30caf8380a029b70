"""A block: mixer, cross attention and MLP, those there are, each with a norm and a residual connection.

The norm stands before the design, x + dropout(design(norm(x))), or after, norm(x + dropout(design(x))).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensornet_attn import compiler
from tensornet_attn.models.config import Config
from tensornet_attn.models.fit import Fitted

Tensor = torch.Tensor
Losses = dict[str, Tensor]  # auxiliary losses by name, scalars
WithLosses = Tensor | tuple[Tensor, Losses]
NORMS = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}


def norm_of(config: Config, **new: Any) -> nn.Module:
    """The norm of a model; eps is 1e-5 for either kind."""
    return NORMS[config.norm](config.width, eps=1e-5, **new)


def last_norm_of(config: Config, **new: Any) -> nn.Module:
    """The norm at the end of a stack; none where each layer ends with one."""
    return nn.Identity() if config.post_norm else norm_of(config, **new)


class Sublayer(nn.Module):
    """A design with its norm and dropout; the residual connection is around all three."""

    def __init__(self, part: Fitted, config: Config, backend: str, **new: Any):
        super().__init__()
        self.norm, self.post_norm = norm_of(config, **new), config.post_norm
        self.design = compiler.compile(part.design, backend, part.causal, n=config.length, **new)
        self.dropout = nn.Dropout(config.dropout)
        self.keyed, self.context = part.keyed, part.context

    def forward(
        self, x: Tensor, key_mask: Tensor | None = None, source: Tensor | None = None, losses: bool = False
    ) -> WithLosses:
        """x, and the result, [batch, n, width]; `source` [batch, m, width] is normed already; key_mask [batch, m].

        `losses`: the result is (result, the design's losses).
        """
        into = self._before(x)
        inputs = (into,) if source is None else (into, source)
        return self._added(x, inputs, key_mask if self.keyed else None, losses)

    def after(self, context: Tensor, n: int, key_mask: Tensor | None, losses: bool = False) -> WithLosses:
        """The last n rows of a context [batch, m, width], each seeing the context; key_mask [batch, m]."""
        into, x = self._before(context), context[:, context.shape[1] - n :]
        return self._added(x, (into[:, into.shape[1] - n :], into), key_mask, losses)

    def _before(self, x: Tensor) -> Tensor:
        return x if self.post_norm else self.norm(x)

    def _added(self, x: Tensor, inputs: tuple[Tensor, ...], key_mask: Tensor | None, losses: bool) -> WithLosses:
        if not losses:
            return self._behind(x + self.dropout(self.design(*inputs, key_mask=key_mask)))
        made, found = self.design(*inputs, key_mask=key_mask, losses=True)
        return self._behind(x + self.dropout(made)), found

    def _behind(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.post_norm else x


class Block(nn.Module):
    """One layer of a model. Its parameters are named `mixer.design.Wq`, `mixer.norm.weight` and so on."""

    def __init__(self, parts: dict[str, Fitted], config: Config, backend: str, **new: Any):
        super().__init__()
        self.roles = tuple(parts)
        for role, part in parts.items():
            self.add_module(role, Sublayer(part, config, backend, **new))

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        losses: bool = False,
    ) -> WithLosses:
        """x, and the result, [batch, n, width]; key_mask [batch, n]; source [batch, m, width], its mask [batch, m].

        `losses`: the result is (result, losses), named such as `mixer.balance`.
        """
        return self._rest(self.mixer(x, key_mask, losses=losses), key_mask, source, source_mask, losses)

    def after(
        self, context: Tensor, n: int, key_mask: Tensor | None, own_mask: Tensor | None, losses: bool = False
    ) -> WithLosses:
        """Like forward for the last n rows of a context, which the mixer sees as a whole."""
        return self._rest(self.mixer.after(context, n, key_mask, losses), own_mask, None, None, losses)

    def _rest(
        self,
        mixed: WithLosses,
        key_mask: Tensor | None,
        source: Tensor | None,
        source_mask: Tensor | None,
        losses: bool,
    ) -> WithLosses:
        found: Losses = {}
        x = gathered(mixed, "mixer", found)
        if "cross" in self.roles:
            x = gathered(self.cross(x, source_mask, source, losses), "cross", found)
        if "mlp" in self.roles:
            x = gathered(self.mlp(x, key_mask, losses=losses), "mlp", found)
        return (x, found) if losses else x


def gathered(made: WithLosses, where: str, found: Losses) -> Tensor:
    """A result without its losses, which go to those found so far, the place before their names."""
    if isinstance(made, Tensor):
        return made
    found |= {f"{where}.{name}": value for name, value in made[1].items()}
    return made[0]
