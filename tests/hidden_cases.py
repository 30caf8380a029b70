"""Designs of which a mask hides something, calls where that is infinite or NaN, and what has to come of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import tensornet_attn as ta

F64 = torch.float64
MAPS = (
    "relu gelu silu elu elu1 elu1_neg tanh sigmoid exp log square sqrt abs softplus softcap(3) clamp(0.5,2) "
    "power(2) power(3) power(0.5) power(-1.5) gelu_tanh quick_gelu mish hardswish hardsigmoid relu_squared "
    "leaky_relu(0.1) logsigmoid erf sin cos expm1 log1p reciprocal clamp_min(0.5) clamp_max(2)"
).split()
KEPT, REDUCED = ("softmax", "normalize", "keep"), ("sum", "mean", "max", "logsumexp")
BOXES = (*KEPT, *REDUCED, "topk", "product")  # a product with the values, without a box
MASKS = ("causal", "band", "window", "formula", "boolean", "heads", "float", "key_mask")
BAD = (torch.inf, -torch.inf, torch.nan, -50.0, 1e30, 0.0)  # what hidden entries hold
GOOD = 1.5
OWN = {"band": ["band(3)"], "window": ["window(4, 1)"], "formula": ["causal and (window(3, 0) or prefix(2))"]}
FORMS: dict[str, dict[str, Any]] = {  # what stands between what is given, E[h n m], and the box A
    "alone": {"A": {"of": {"map": "MAP", "of": "E"}}},
    "twice": {"D": {"map": "MAP", "of": "E"}, "A": {"of": "D[h n m] D[h n m] + D[h n m] -> h n m"}},
    "times": {"D": {"map": "MAP", "of": "E"}, "A": {"of": "D[h n m] c[n h] F[h n m] -> h n m"}},
    "a map of it": {"D": {"map": "MAP", "of": "E"}, "A": {"of": {"map": "exp", "of": "-D[h n m] -> h n m"}}},
    "of a map": {"D": {"map": "log", "of": "E"}, "A": {"of": {"map": "MAP", "of": "D[h n m] + 2 -> h n m"}}},
    "two boxes": {
        "D": {"map": "MAP", "of": "E"},
        "B": {"keep": "m", "mask": ["window(2, 0)"], "of": "D"},
        "A": {"of": "D"},
    },
    "along heads": {"A": {"of": {"softmax": "h", "of": {"map": "MAP", "of": "E"}}}},
    "over heads": {"A": {"of": "L[g n m] P[g h] -> h n m"}, "L": {"map": "MAP", "of": "E[g n m] -> g n m"}},
    "beside": {"D": {"map": "MAP", "of": "E"}, "A": {"of": "c[n h] e[m d] W[d h] + 2 -> h n m"}},
}


@dataclass(frozen=True)
class Case:
    """`function` in `box`, under a `mask`; with the `form` "beside", what is multiplied with a map."""

    function: str
    box: str
    form: str
    mask: str

    def __str__(self) -> str:
        return f"{self.box} over {self.function}, {self.form}, {self.mask}"

    @property
    def possible(self) -> bool:
        if self.mask == "float" and (self.box in ("normalize", "keep", "topk") or self.form == "two boxes"):
            return False
        if self.box == "product" and self.mask != "key_mask":
            return False
        return self.form != "beside" or self.box in KEPT

    def design(self) -> dict[str, Any]:
        steps = {name: self.filled(step) for name, step in FORMS[self.form].items()}
        more = ({"mask": OWN[self.mask]} if self.mask in OWN else {}) | ({"k": 3} if self.box == "topk" else {})
        steps["A"] = steps["A"]["of"] if self.box == "product" else {self.box: "m", **steps["A"], **more}
        steps = dict(sorted(steps.items(), key=lambda item: item[0] == "A"))
        read = [
            f"{'AD' if self.form == 'beside' else 'A'}[h n m] e[m d]" if self.box not in REDUCED else "A[h n] x[n d]"
        ]
        read += ["B[h n m] e[m d]"] if "B" in steps else []
        heads = self.form == "over heads"
        return {
            "tensornet": 1,
            "name": "hidden",
            "causal": self.mask == "causal",
            "legs": {"n": "query", "m": "key", "h": "head 2", "d": 3} | ({"g": "head 2"} if heads else {}),
            "inputs": {"x": "n d", "e": "m d", "b": "h n m"} | ({"F": "h n m"} if self.form == "times" else {}),
            "weights": {"W": "d h"} | ({"P": "g h"} if heads else {}),
            "diagram": {
                "c": "x[n d] W[d h] -> n h",
                "E": "0.1 * c[n h] + 0.1 * e[m d] W[d h] + b[h n m] -> h n m",
                **steps,
                **({"AD": "A[h n m] D[h n m] -> h n m"} if self.form == "beside" else {}),
                "y": f"{' + '.join(read)} -> n h d",
            },
            "output": "y",
        }

    def filled(self, step: Any) -> Any:
        if isinstance(step, dict):
            return {key: self.function if value == "MAP" else self.filled(value) for key, value in step.items()}
        return step

    def call(self, n: int, seed: int = 0) -> Call:
        draw = torch.Generator().manual_seed(seed)
        distance = torch.arange(n)[:, None] - torch.arange(n)
        visible, options = torch.ones(2, 2, n, n, dtype=torch.bool), dict[str, Tensor]()
        visible &= {"causal": distance >= 0, "band": distance.abs() <= 3}.get(self.mask, distance == distance)
        visible &= (distance <= 4) & (distance >= -1) if self.mask == "window" else visible
        visible &= (distance >= 0) & ((distance <= 3) | (torch.arange(n) < 2)) if self.mask == "formula" else visible
        if self.mask in ("boolean", "heads", "float"):
            shape = {"boolean": (2, n, n), "heads": (2, 2, n, n), "float": (n, n)}[self.mask]
            mask = torch.rand(shape, generator=draw) < 0.6
            options["mask"] = mask
            visible = visible & (mask[:, None] if self.mask == "boolean" else mask)
            if self.mask == "float":
                options["mask"] = torch.where(mask, torch.randn(n, n, generator=draw), -torch.inf)
        if self.mask == "key_mask":
            options["key_mask"] = torch.rand(2, n, generator=draw) < 0.6
            visible = visible & options["key_mask"][:, None, None, :]
        if self.form == "two boxes" and self.mask in OWN:
            visible = visible | ((distance <= 2) & (distance >= 0))
        if self.form in ("over heads", "along heads"):
            visible = visible.any(1, keepdim=True).expand_as(visible)
        shapes = [(2, n, 3), (2, n, 3), *[(2, 2, n, n)] * (2 if self.form == "times" else 1)]
        tensors = [torch.rand(shape, generator=draw, dtype=F64) + 0.7 for shape in shapes]
        return Call(tuple(tensors), options, visible)


@dataclass(frozen=True)
class Call:
    """Inputs, of which those from the third on have [batch, h, n, m], masks, and which of these entries count."""

    inputs: tuple[Tensor, ...]
    options: dict[str, Tensor]
    visible: Tensor

    def holding(self, bad: float) -> Iterator[Tensor]:
        """The inputs, with this in every hidden entry."""
        for place, x in enumerate(self.inputs):
            yield x if place < 2 else torch.where(self.visible, x, bad)


def results(module: nn.Module, inputs: Sequence[Tensor], options: dict[str, Tensor]) -> list[Tensor]:
    """The output, and the gradients of inputs and weights."""
    kind = next(module.parameters()).dtype
    leaves = [x.detach().to(kind).requires_grad_() for x in inputs] + list(module.parameters())
    masks = {name: x if x.dtype == torch.bool else x.to(kind) for name, x in options.items()}
    y = module(*leaves[: len(inputs)], **masks)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(5), dtype=F64).to(kind)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), leaves, materialize_grads=True)]


def module_of(data: dict[str, Any], backend: str, dtype: torch.dtype, **wanted: Any) -> nn.Module:
    """In evaluation, with weights that are positive."""
    module = ta.compile(data, backend, dtype=dtype, **wanted).eval()
    for number, weight in enumerate(module.parameters()):
        draw = torch.Generator().manual_seed(number)
        weight.data.copy_(0.3 + 0.3 * torch.rand(weight.shape, generator=draw, dtype=F64))
    return module


def check(case: Case, backends: Sequence[tuple[str, dict[str, Any]]], n: int, dtype: torch.dtype, bad: float) -> None:
    """Hidden entries reach neither the output nor a gradient; and what comes of the others is what the oracle says."""
    call, data = case.call(n), case.design()
    dtype = F64 if case.box in ("max", "topk") else dtype  # in float32, rounding chooses among almost equal entries
    wanted = results(module_of(data, "reference", F64), list(call.holding(GOOD)), call.options)
    for backend, options in backends:
        module = module_of(data, backend, dtype, **options)
        found, plain = (results(module, list(call.holding(value)), call.options) for value in (bad, GOOD))
        rough = 1e-9 if dtype == F64 else 1e-3
        for got, same, want in zip(found, plain, wanted, strict=True):
            scale = max(1.0, want.abs().max().item())
            assert got.isfinite().all(), f"{backend}: {case}, {bad}"
            torch.testing.assert_close(got, same, rtol=0, atol=1e-6 * scale)
            torch.testing.assert_close(got.to(F64), want, rtol=0, atol=rough * scale)
        for gradient in found[3 : 1 + len(call.inputs)]:
            assert not gradient[~call.visible].any(), f"{backend}: a hidden entry has a gradient"


S, READ = "q[n h d] k[m h d] -> h n m", "A[h n m] v[m h e] W[h] -> n h e"
DECAY = {
    "l": "-g[m h] g[m h] -> m h",
    "c": {"sum": "m", "of": "l[m h] one[n] -> n m h"},
    "D": {"map": "exp", "of": "c[n h] - c[m h] -> h n m"},
}
FEATURES = {"Q": {"map": "elu1", "of": "q"}, "K": {"map": "elu1", "of": "k"}}
SUM, SUM_OF = "q[n h d] s[h d] W[h] -> n h d", "Q[n h d] s[h d e] W[h] -> n h e"
ROWS: dict[str, dict[str, Any]] = {  # what reads q[n h d], and k, v and g of the keys as they are given
    "softmax": {"A": {"softmax": "m", "of": S}},
    "band": {"A": {"softmax": "m", "mask": ["band(2)"], "of": S}},
    "sigmoid": {"A": {"keep": "m", "of": {"map": "sigmoid", "of": S}}},
    "two maps": {
        "B": {"softmax": "m", "mask": ["band(2)"], "of": S},
        "C": {"keep": "m", "of": S},
        "A": "B[h n m] + C[h n m] -> h n m",
    },
    "distance": {
        "kk": "k[m h d] k[m h d] -> m h",
        "A": {"softmax": "m", "of": "2 * q[n h d] k[m h d] - kk[m h] -> h n m"},
    },
    "gates": {
        "u": {"map": "log", "of": {"map": "sigmoid", "of": "g"}},
        "A": {"softmax": "m", "of": "q[n h d] k[m h d] + u[m h] -> h n m"},
    },
    "linear": {**FEATURES, "A": {"normalize": "m", "of": "Q[n h d] K[m h d] -> h n m"}},
    "causal sums": {"A": {"keep": "m", "mask": ["causal"], "of": S}},
    "decay": {**DECAY, "A": {"keep": "m", "mask": ["causal"], "of": "q[n h d] k[m h d] D[h n m] -> h n m"}},
    "normalized decay": {
        **DECAY,
        **FEATURES,
        "A": {"normalize": "m", "mask": ["causal"], "of": "Q[n h d] K[m h d] D[h n m] -> h n m"},
    },
    "delta rule": {
        "o": {"delta_rule": "m", "query": "q", "key": "k", "value": "v", "rate": "g"},
        "y": "o[n h e] W[h] -> n h e",
    },
    "scan": {"s": {"scan": "m", "decay": "k", "of": "v[m h d]"}, "y": "q[n h d] s[n h d] W[h] -> n h d"},
    "sum": {"s": {"mean": "m", "of": {"map": "square", "of": "k"}}, "y": SUM},
    "largest": {"s": {"max": "m", "of": "k"}, "y": SUM},
    "best keys": {"T": {"topk": "m", "k": 3, "fill": "-inf", "of": S}, "A": {"softmax": "m", "of": "T"}},
    "best scores": {"A": {"topk": "m", "k": 3, "of": S}},
    "level": {
        "l": {"logsumexp": "m", "of": S},
        "A": {"softmax": "m", "mask": ["prefix(4)"], "sink": "l", "of": S},
    },
    "product": {**FEATURES, "s": "K[m h d] v[m h e] -> h d e", "y": SUM_OF},
    "product of maps": {**FEATURES, "E": {"map": "sigmoid", "of": "v"}, "s": "K[m h d] E[m h e] -> h d e", "y": SUM_OF},
    "product of maps of scores": {
        "A": {"map": "sigmoid", "of": S},
        "E": {"map": "sigmoid", "of": "v"},
        "y": "A[h n m] E[m h e] W[h] -> n h e",
    },
    "product of gates": {
        "u": {"map": "exp", "of": "g"},
        "s": "u[m h] g[m h] + 2 * v[m h d] v[m h d] -> h",
        "y": "q[n h d] s[h] W[h] -> n h d",
    },
    "product of scores": {"A": {"map": "sigmoid", "of": S}},
}


def rows_design(name: str) -> dict[str, Any]:
    diagram = {**ROWS[name]} | ({} if "y" in ROWS[name] else {"y": READ})
    if "c" in diagram:
        diagram["c"] = {**diagram["c"], "mask": ["causal"]}
    text, wide = str(diagram), "d" if "v[m h d]" in str(diagram) else "e"
    legs = {"n": "query", "m": "key", "h": "head 2", "d": 4, "e": 3}
    given = {"k": "m h d", "v": f"m h {wide}", "g": "m h"}
    return {
        "tensornet": 1,
        "name": "rows",
        "causal": name in ("delta rule", "scan"),
        "legs": {leg: size for leg, size in legs.items() if leg != "e" or "h e]" in text},
        "inputs": {"q": "n h d"} | {x: legs for x, legs in given.items() if f"{x}[" in text or f"'{x}'" in text},
        "weights": {"W": "h"},
        "constants": {"one": {"legs": "n", "value": "ones"}} if "one[" in text else {},
        "diagram": diagram,
        "output": "y",
    }


def check_rows(module: nn.Module, bad: float, n: int = 40, without: int | None = None) -> None:
    """Rows that the key mask hides may hold anything: outputs and all gradients are those with zeros there.

    `without`: an input whose hidden rows are queries too; only outputs of visible rows are compared.
    """
    graph, draw = module.plan.graph, torch.Generator().manual_seed(n)
    seen = torch.rand(2, n, generator=draw) < 0.6
    seen[1, :9] = False

    def shown(x: Tensor) -> Tensor:
        return seen.reshape(2, n, *[1] * (x.ndim - 2))

    given = []
    for tensor in graph.of_role("input"):
        sizes = [n if graph.leg[leg].sequence else graph.leg[leg].size for leg in tensor.legs]
        given.append(torch.rand(2, *sizes, generator=draw, dtype=F64) * 0.6 + 0.2)
    keys = [place for place, t in enumerate(graph.of_role("input")) if graph.key in t.legs or place == without]

    def held(fill: float) -> list[Tensor]:
        inputs = [torch.where(shown(x), x, fill) if i in keys else x for i, x in enumerate(given)]
        return results(module, inputs, {"key_mask": seen})

    found, wanted = held(bad), held(0.0)
    if without is not None:
        found, wanted = ([torch.where(shown(y[0]), y[0], 0)] for y in (found, wanted))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9 * max(1.0, want.abs().max().item()))


def of_pairs(draw: random.Random) -> dict[str, Any]:
    """A design of maps, sums, products and boxes over values of queries and keys, in no good order."""
    names, steps = ["E"], dict[str, Any]()
    for place in range(draw.randint(2, 6)):
        a, b = (f"{draw.choice(names)}[h n m]" for _ in range(2))
        masks = draw.choice([[], ["causal"], ["band(1)"], ["window(0, 2)"]])
        choices = [
            {"map": draw.choice(["tanh", "exp", "square"]), "of": f"0.5 * {a} -> h n m"},
            f"{a} {b} -> h n m",
            f"{a} - {b} -> h n m",
            f"{a[:-7]}[g n m] P[g h] -> h n m",
            {draw.choice(["keep", "softmax", "normalize"]): "m", "mask": masks, "of": a[:-7]},
            {"softmax": draw.choice("hn"), "of": a[:-7]},
            {"l2norm": draw.choice("hm"), "of": a[:-7]},
        ]
        steps[f"S{place}"] = draw.choice(choices)
        names.append(f"S{place}")
    left = [name for name in names if f"{name}[" not in str(steps) and f"'of': '{name}'" not in str(steps)]
    read = dict.fromkeys([*left, *draw.choices(names, k=2)])
    return {
        "tensornet": 1,
        "name": "pairs",
        "legs": {"n": "query", "m": "key", "h": "head 2", "d": 3} | ({"g": "head 2"} if "P[" in str(steps) else {}),
        "inputs": {"x": "n d", "e": "m d", "b": "h n m"},
        "weights": {"W": "h"} | ({"P": "g h"} if "P[" in str(steps) else {}),
        "diagram": {
            "E": "x[n d] e[m d] W[h] + b[h n m] -> h n m",
            **steps,
            "y": f"{' + '.join(f'{name}[h n m] e[m d]' for name in read)} -> n h d",
        },
        "output": "y",
    }


PADDED = (*(name for name in ROWS if "product" in name), "best keys", "best scores", "level")


def check_padded(module: nn.Module, bad: float, rough: float = 1e-10) -> None:
    """With keys that the key mask hides behind those of a call, results and gradients are those of the call."""
    graph, draw, shown, m = module.plan.graph, torch.Generator().manual_seed(2), 6, 9
    tensors = graph.of_role("input")

    def sizes(legs: tuple[str, ...], keys: int) -> list[int]:
        known = {str(graph.query): shown, str(graph.key): keys}
        return [known.get(leg) or int(graph.leg[leg].size or 1) for leg in legs]

    short = [torch.rand(2, *sizes(one.legs, shown), generator=draw, dtype=F64) + 0.2 for one in tensors]
    long = [torch.full((2, *sizes(one.legs, m)), bad, dtype=F64) for one in tensors]
    places = [
        (..., *(slice(shown) for _ in one.legs[one.legs.index("m") :])) if "m" in one.legs else ... for one in tensors
    ]
    for x, part, place in zip(long, short, places, strict=True):
        x[place] = part
    key_mask = (torch.arange(m) < shown).expand(2, m)
    wanted, found = results(module, short, {}), results(module, long, {"key_mask": key_mask})
    for got, want, place in zip(found, wanted, [..., *places, *[...] * len(found)], strict=False):
        torch.testing.assert_close(got[place], want, rtol=0, atol=rough * max(1.0, want.abs().max().item()))
        assert got.count_nonzero() == got[place].count_nonzero(), "a hidden key has a gradient"


SOFTMAX = {"softmax": "m", "mask": ["causal"], "of": "a[n] b[m] -> n m"}
PRODUCT = {"A": SOFTMAX, "S": "q[n d] k[m d] -> n m"}
OVERFLOWS: dict[str, dict[str, Any]] = {  # what makes P[n m], which is zero where pairs are hidden
    "kept": {
        "D": {"map": "exp", "of": {"map": "tanh", "of": "a[n] - b[m] -> n m"}},
        "P": {"keep": "m", "mask": ["causal"], "of": "q[n d] k[m d] D[n m] -> n m"},
    },
    "times softmax": PRODUCT | {"P": "A[n m] S[n m] -> n m"},
    "a map times softmax": PRODUCT
    | {"T": {"map": "softplus", "of": "0.5 * S[n m] -> n m"}, "P": "A[n m] T[n m] -> n m"},
    "of a softmax of it": PRODUCT
    | {"Z": {"softmax": "m", "mask": ["causal"], "of": "S"}, "P": "A[n m] S[n m] Z[n m] -> n m"},
}


def design_of_pairs(inputs: dict[str, str], maps: dict[str, Any], y: str) -> dict[str, Any]:
    """A design of queries and keys, and of further inputs, whose output multiplies W[h]."""
    return {
        "tensornet": 1,
        "name": "pairs",
        "legs": {"n": "query", "m": "key", "h": 2, "d": 2},
        "inputs": {"q": "n d", "k": "m d"} | inputs,
        "weights": {"W": "h"},
        "diagram": maps | {"y": y},
        "output": "y",
    }


def check_overflow(name: str, backend: str, options: dict[str, Any]) -> None:
    """A product is zero where it is masked, though one factor is zero there and another one infinite."""
    design = design_of_pairs({"a": "n", "b": "m"}, OVERFLOWS[name], "P[n m] b[m] W[h] -> n h")
    draw, n = torch.Generator().manual_seed(0), 40
    inputs = [torch.rand(n, *wide, generator=draw, dtype=F64) for wide in ((2,), (2,), (), ())]
    inputs[0][:, 0] = inputs[1][:, 0] = 0
    inputs[0][0, 0] = inputs[1][-1, 0] = 1e200  # the product of the first query and the last key is infinite
    plans = (("reference", {}), (backend, options))
    wanted, outcome = (results(module_of(design, name, F64, **more), inputs, {}) for name, more in plans)
    for got, want in zip(outcome, wanted, strict=True):
        assert want.isfinite().all()
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
