"""The delta rule with decay and keys of its own to erase and write: the loop's values and gradients, in float64."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from tensornet_attn.runtime.gated import gated_delta_rule, gated_delta_state, gated_gradients, gated_reads

LENGTHS = [(7, 7), (3, 7), (7, 3), (1, 1), (8, 8), (4, 19), (19, 4)]
KINDS = {  # the channels of the decay, and which keys are separate
    "by head": (1, ""),
    "by channel": (4, ""),
    "without decay": (0, "ew"),
    "erase": (1, "e"),
    "write, by channel": (4, "w"),
    "erase and write, by channel": (4, "ew"),
    "erase undecayed": (1, "u"),
    "erase undecayed and write, by channel": (4, "uw"),
}


def loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    decay: Tensor | None = None,
    erase: Tensor | None = None,
    write: Tensor | None = None,
    undecayed: bool = False,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Key by key, as the equation says."""
    n, m, reads = q.shape[-2], k.shape[-2], []
    erase, write = k if erase is None else erase, k if write is None else write
    decay = torch.zeros_like(k[..., :1]) if decay is None else decay
    batch = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    S = k.new_zeros(*batch, k.shape[-1], v.shape[-1])
    for t in range(min(0, m - n), m):
        if t >= 0:
            faded = decay[..., t, :, None].exp() * S
            gone = (erase[..., t, :, None] * (S if undecayed else faded)).sum(-2, keepdim=True)
            new = write[..., t, :, None] * v[..., t, None, :] - k[..., t, :, None] * gone
            new = faded + rate[..., t, None, None] * new
            S = new if key_mask is None else torch.where(key_mask[..., t, None, None], new, S)
        if t >= m - n:
            reads.append((q[..., t - m + n, :, None] * S).sum(-2))
    return torch.stack(reads, -2) if reads else q.new_zeros(*batch, 0, v.shape[-1])


def drawn(
    kind: str, batch: tuple[int, ...], n: int, m: int, dtype: torch.dtype = torch.float64, strong: float = 2.0
) -> dict[str, Tensor]:
    """Operands of two heads by name."""
    channels, separate = KINDS[kind]
    shapes = {"q": (n, 4), "k": (m, 4), "v": (m, 3), "rate": (m,)}
    shapes |= {"decay": (m, channels)} if channels else {}
    shapes |= {
        name: (m, 4) for name in ("erase", "write") if name[0] in separate or ("u" in separate and name[0] == "e")
    }
    found = {name: torch.randn(*batch, 2, *shape, dtype=dtype) for name, shape in shapes.items()}
    found |= {name: F.normalize(found[name], dim=-1) for name in ("k", "erase", "write") if name in found}
    found["rate"] = found["rate"].sigmoid()
    if channels:
        found["decay"] = -strong * torch.rand_like(found["decay"])
    return {name: x.requires_grad_() for name, x in found.items()}


def options(kind: str) -> dict[str, bool]:
    return {"undecayed": "u" in KINDS[kind][1]}


def agree(found: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    """Equal values, and equal gradients under random weights."""
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
    weights = torch.randn_like(wanted)
    both = [torch.autograd.grad((y * weights).sum(), leaves, materialize_grads=True) for y in (found, wanted)]
    torch.testing.assert_close(*both, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), pytest.param((2, 1, 3), marks=pytest.mark.rotated)])
@pytest.mark.parametrize(("n", "m"), LENGTHS)
def test_values_and_gradients(kind: str, batch: tuple[int, ...], n: int, m: int) -> None:
    torch.manual_seed(0)
    for key_mask, chunk in itertools.product((None, torch.rand(*batch, 1, m) < 0.6), (1, 4, 64)):
        given = drawn(kind, batch, n, m)
        wanted = loop(**given, **options(kind), key_mask=key_mask)
        found = gated_delta_rule(**given, **options(kind), key_mask=key_mask, chunk=chunk)
        agree(found, wanted, [*given.values()])
