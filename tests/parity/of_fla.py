"""Layers from the reference implementations of fla-core's operations, with projections.

They compute in float32 whatever their dtype, unless `single` is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from tensornet_attn.convert.layers import Numbers, Reading
from tests.parity.layer import ParityLayer

F, H, D, E = 24, 3, 4, 5
SINGLE = "all of it"
Run = Callable[..., Any]


def naive(folder: str, function: str) -> Run:
    """A reference implementation, loaded from its file, because importing fla needs Triton and takes seconds."""
    root = find_spec("fla")
    assert root is not None
    assert root.submodule_search_locations
    path = Path(root.submodule_search_locations[0]) / "ops" / folder / "naive.py"
    spec = spec_from_file_location(f"fla_naive_{folder}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


# What the operations take for some arguments, from their projections.
ACTIVATIONS: Mapping[str, Run] = {"beta": torch.sigmoid, "g": nnf.logsigmoid, "gk": nnf.logsigmoid}
WEIGHTS = {"q": "Wq", "k": "Wk", "v": "Wv", "s": "Ws", "g": "Wg", "gk": "Wg", "beta": "Wb", "p": "Wa"}


class ProjectedOperation(nn.Module):
    """An operation between projections without biases, of its arguments (such as queries) and of its output."""

    def __init__(self, widths: Mapping[str, int], run: Run, heads_first: bool):
        super().__init__()
        self.widths, self.run, self.heads_first = dict(widths), run, heads_first
        for name, width in widths.items():
            self.add_module(name, nn.Linear(F, H * width, bias=False))
        self.out = nn.Linear(H * widths["v"], F, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, n, f] to [batch, n, f]; arguments and result of the operation are [batch, n, heads, entries]."""
        arguments = {}
        for name, width in self.widths.items():
            projected = getattr(self, name)(x).unflatten(-1, (H, width))
            projected = ACTIVATIONS.get(name, nn.Identity())(projected if width > 1 else projected[..., 0])
            arguments[name] = projected.transpose(1, 2) if self.heads_first else projected
        output = self.run(**arguments)
        y = output[0] if isinstance(output, tuple) else output
        return self.out((y.transpose(1, 2) if self.heads_first else y).flatten(-2).to(x.dtype))


def row(
    folder: str,
    function: str,
    design: str,
    legs: Mapping[str, str],
    extra: Mapping[str, Any] | None = None,
    heads_first: bool = False,
    around: Callable[[Run], Run] | None = None,
    single: str = SINGLE,
    fixed: Mapping[str, Callable[[], Tensor]] | None = None,
    names: Mapping[str, str] | None = None,
) -> ParityLayer:
    """A layer of fla-core. `legs`: the leg of each projection's entries, or 1 for one value per head.

    `around` replaces the operation by one of the projections. `names`: names of the projections' weights in the design.
    """
    sizes = {"d": D, "e": E, "r": 3, "1": 1}
    widths = {name: sizes[leg] for name, leg in legs.items()}

    def make() -> nn.Module:
        run = naive(folder, function)
        return ProjectedOperation(widths, around(run) if around else run, heads_first)

    weights: dict[str, Any] = {
        (WEIGHTS | dict(names or {}))[name]: f"{name}.weight: (h {'0/1' if leg == '1' else leg}) f"
        for name, leg in legs.items()
    }
    weights["Wo"] = f"out.weight: f (h {legs['v']})"
    for name, make_weight in (fixed or {}).items():
        weights[name] = lambda _, __, make_weight=make_weight: make_weight()
    numbers: Numbers = {"f": F, "h": H, **{leg: sizes[leg] for leg in legs.values() if leg != "1"}}
    reading = Reading(design, ("ProjectedOperation",), lambda _: numbers, weights, extra=extra or {})
    return ParityLayer("fla-core", function, design, make, reading, single=single)


QKV = {"q": "d", "k": "d", "v": "d"}
QKE = {"q": "d", "k": "d", "v": "e"}
SQUARES = {"diagram": {"A": {"normalize": "m", "eps": 1e-6, "of": "s[h n m] s[h n m] -> h n m"}}}
LINEAR = {"causal": True, "diagram": {"A": {"keep": "m", "of": "(d ** -0.5) * Q[n h d] K[m h d] -> h n m"}}}
RETENTION = {
    "causal": True,
    "weights": {"w": {"legs": "h", "frozen": True}},
    "constants": {"gap": {"legs": "n m", "value": "distance"}},
    "diagram": {
        "D": {"map": "exp", "of": "- w[h] gap[n m] -> h n m"},
        "A": {"keep": "m", "of": "(d ** -0.5) * Q[n h d] K[m h d] D[h n m] -> h n m"},
    },
}
GLA = {
    "causal": True,
    "legs": {"d": "head f / h"},
    "weights": {"Wg": "f h d"},
    "diagram": {
        "g": {"map": "softplus", "of": "- memory[m f] Wg[f h d] -> m h d"},
        "c": {"cumsum": "m", "of": "g"},
        "D": {"map": "exp", "of": "c[m h d] - c[n h d] -> n m h d"},
        "A": {"keep": "m", "of": "(d ** -0.5) * Q[n h d] K[m h d] D[n m h d] -> h n m"},
    },
}
DELTA: dict[str, Any] = {
    "causal": True,
    "legs": {"e": 5},
    "weights": {"Wb": "f h", "Wv": "f h e", "Wo": "h e f"},
    "diagram": {
        "V": "memory[m f] Wv[f h e] -> m h e",
        "S": "(d ** -0.5) * Q[n h d] -> n h d",
        "rate": {"map": "sigmoid", "of": "memory[m f] Wb[f h] -> m h"},
        "A": {"delta_rule": "m", "query": "S", "key": "K", "value": "V", "rate": "rate"},
        "y": "A[n h e] Wo[h e f] -> n f",
    },
}


def decays() -> Tensor:
    """The decays of retention: -log(1 - 2 ** (-5 - head))."""
    return -torch.log1p(-(2.0 ** (-5.0 - torch.arange(H, dtype=torch.float64))))


def with_gates(run: Run) -> Run:
    """The operation with the write gate of each slot and the logarithm of its decay, from one projection."""

    def gated(s: Tensor, **qkv: Tensor) -> Any:
        g = nnf.logsigmoid(s) / 8
        return run(**qkv, s=1 - g.exp(), g=g)

    return gated


def gated(legs: str, **more: str) -> dict[str, Any]:
    """The delta rule with a decay of the state that has these legs. `more`: other operands."""
    state_legs = legs.removeprefix("m ")
    erased = {"erase": "memory[m f] Wa[f h d] -> m h d"} if more else {}
    steps = {
        "u": {"map": "softplus", "of": f"-1 * memory[m f] Wg[f {state_legs}] -> {legs}"},
        "g": f"-1 * u[{legs}] -> {legs}",
        "A": DELTA["diagram"]["A"] | {"decay": "g"} | more,
    }
    weights = DELTA["weights"] | {"Wg": f"f {state_legs}"} | ({"Wa": "f h d"} if more else {})
    diagram = {name: step for name, step in DELTA["diagram"].items() if name not in ("A", "y")} | erased | steps
    return DELTA | {"weights": weights, "diagram": diagram | {"y": DELTA["diagram"]["y"]}}


LAYERS = (
    row("based", "naive_parallel_based", "based", QKE, heads_first=True, single=""),
    row("rebased", "naive_parallel_rebased", "based", QKE, SQUARES, heads_first=True, single=""),
    row("abc", "naive_cumsum_abc", "abc", QKV | {"s": "r"}, heads_first=True),
    row("abc", "naive_recurrent_abc", "abc", QKV | {"s": "r"}, heads_first=True),
    row("gsa", "naive_recurrent_gsa", "gsa", QKV | {"s": "r"}, around=with_gates),
    row("linear_attn", "naive_recurrent_linear_attn", "mhsa", QKV, LINEAR),
    row("delta_rule", "delta_rule_recurrence", "mhsa", QKE | {"beta": "1"}, DELTA, heads_first=True),
    row("retention", "naive_retention", "mhsa", QKV, RETENTION, heads_first=True, fixed={"w": decays}),
    row(
        "forgetting_attn",
        "naive_forgetting_attn",
        "fox",
        QKV | {"g": "1"},
        fixed={"bf": lambda: torch.zeros(H, dtype=torch.float64)},
        names={"g": "Wf"},
    ),
    row("stickbreaking_attn", "naive_stickbreaking_attn", "stick_breaking", QKV, single=""),
    row("gated_delta_rule", "naive_recurrent_gated_delta_rule", "mhsa", QKE | {"beta": "1", "g": "1"}, gated("m h")),
    row("kda", "naive_recurrent_kda", "mhsa", QKE | {"beta": "1", "g": "d"}, gated("m h d")),
    row("comba", "naive_recurrent_comba", "mhsa", QKE | {"beta": "1", "g": "1", "p": "d"}, gated("m h", erase="erase")),
    row("gla", "naive_recurrent_gla", "mhsa", QKV | {"gk": "d"}, GLA),
)
