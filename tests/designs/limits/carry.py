"""What the tests of limits share: random weights, and a design run with them."""

from __future__ import annotations

import torch
from torch import Tensor

import tensornet_attn as ta
from tests.designs.cases import normal

F, H, D, N = 12, 3, 4, 5
FH = {"f": F, "h": H}


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return 0.5 * normal(torch.Generator().manual_seed(seed), *shape)


def weights(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: tensor(*shape, seed=10 + place) for place, (name, shape) in enumerate(shapes.items())}


def mhsa_weights(heads: int = H) -> dict[str, Tensor]:
    return weights(Wq=(F, heads, D), Wk=(F, heads, D), Wv=(F, heads, D), Wo=(heads, D, F))


def merged(w: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of mhsa as thsa has them: legs h d as one."""
    return {name: w[name].flatten(1) for name in ("Wq", "Wk", "Wv")} | {"Wo": w["Wo"].flatten(0, 1)}


def run(source: str | dict, w: dict[str, Tensor], x: Tensor, legs: dict | None = None, **settings: float) -> Tensor:
    """The output of a design with these weights, and no others."""
    module = ta.compile(ta.load(source, legs=legs or {}, settings=settings), backend="reference", dtype=torch.float64)
    module.load_state_dict(w)
    return module.eval()(x)


def variant(parent: str, diagram: dict, **sections: object) -> dict:
    return {"tensornet": 1, "name": "variant", "extends": parent, "diagram": diagram, **sections}


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert one.abs().max() > 1e-3  # not alike because both vanish
