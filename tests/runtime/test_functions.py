"""The functions that emitted code carries, against the oracle in float64: values and all gradients."""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import tensornet_attn.runtime
from tensornet_attn.emit.functions import PLAIN, library
from tensornet_attn.emit.module import MODULES
from tensornet_attn.graph import Graph, build
from tensornet_attn.reference import evaluate
from tensornet_attn.runtime import maps, masks, positions, softmax
from tensornet_attn.spec import load

SIZES = [(4, 4), (3, 5), (5, 3), (1, 1), (1, 4)]
BATCHES = [(), (2,), (2, 3), (0,)]
LEGS = {"n": "query", "m": "key", "h": "head 2", "d": 4, "e": 3}


def graph(y: Any, inputs: dict[str, str], **parts: Any) -> Graph:
    legs = {leg: LEGS[leg] for leg in "nmhde" if any(leg in text.split() for text in [*inputs.values(), str(y)])}
    legs |= parts.pop("legs", {})
    data = {"tensornet": 1, "name": "test", "legs": legs, "inputs": inputs, "diagram": {"y": y}, "output": "y", **parts}
    return build(load(data))


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, requires_grad=True)


def agree(found: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    """Equal values, and equal gradients under random weights; what is not used counts as a gradient of zero."""
    torch.testing.assert_close(found, wanted)
    if not found.requires_grad and not wanted.requires_grad:
        return
    weights = torch.randn_like(wanted)
    pairs = [torch.autograd.grad((y * weights).sum(), leaves, materialize_grads=True) for y in (found, wanted)]
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs)


BOXES: dict[str, Callable[[Tensor, Tensor | None, Tensor | None], Tensor]] = {
    "softmax": softmax.masked_softmax,
    "normalize": lambda s, keep, bias: maps.normalized(s, keep),
    "keep": lambda s, keep, bias: maps.kept(s, keep),
    "sum": lambda s, keep, bias: maps.masked_sum(s if bias is None else s + bias, keep),
    "mean": lambda s, keep, bias: maps.masked_mean(s if bias is None else s + bias, keep),
    "max": lambda s, keep, bias: maps.masked_max(s if bias is None else s + bias, keep),
    "logsumexp": lambda s, keep, bias: maps.masked_logsumexp(s if bias is None else s + bias, keep),
}


def run_time_masks(batch: tuple[int, ...], n: int, m: int, floats: bool) -> list[Tensor | None]:
    shapes = [(n, m), (*batch, n, m), (*batch, 2, n, m)]
    seen = [torch.rand(shape) < 0.6 for shape in shapes]
    added = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    hidden = [a.masked_fill(~s, -math.inf) for a, s in zip(added, seen, strict=True)]
    return [None, *seen, *((*added, *hidden) if floats else ())]


@pytest.mark.parametrize("kind", BOXES)
@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("batch", BATCHES)
def test_masked_boxes(kind: str, n: int, m: int, batch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    for mask in run_time_masks(batch, n, m, floats=kind not in ("normalize", "keep")):
        for causal, key_mask in itertools.product((False, True), (None, torch.rand(*batch, m) < 0.6)):
            s = positive(*batch, 2, n, m)
            g = graph({kind: "m", "of": "s"}, {"s": "h n m"}, causal=causal)
            wanted = evaluate(g, {"s": s}, lengths={"n": n, "m": m}, mask=mask, key_mask=key_mask)["y"]
            keep, bias = masks.visible_and_bias(mask if mask is None else masks.run_time_mask(mask, len(batch), 1))
            keep = masks.both(keep, masks.causal_mask(n, m) if causal else None)
            keep = masks.both(keep, key_mask if key_mask is None else masks.key_keep(key_mask, 1))
            agree(BOXES[kind](s, keep, bias), wanted, [s])


@pytest.mark.parametrize("written", ["causal", "band(2)", "window(1, 0)", "window(-1, 2)"])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_masks_of_the_design(written: str, n: int, m: int) -> None:
    ours = {
        "causal": masks.causal_mask(n, m),
        "band(2)": masks.band_mask(n, m, 2),
        "window(1, 0)": masks.window_mask(n, m, 1, 0),
        "window(-1, 2)": masks.window_mask(n, m, -1, 2),
    }[written]
    g = graph({"keep": "m", "mask": [written], "of": "s"}, {"s": "n m"})
    wanted = evaluate(g, {"s": torch.ones(n, m)}, lengths={"n": n, "m": m})["y"]
    assert torch.equal(ours, wanted.bool())


def test_run_time_masks_are_seen_as_batch_others_n_m() -> None:
    def shape(mask: tuple[int, ...], batch: int, others: int) -> tuple[int, ...]:
        return tuple(masks.run_time_mask(torch.ones(mask), batch, others).shape)

    assert shape((3, 5), 2, 1) == (3, 5)
    assert shape((7, 3, 5), 1, 2) == (7, 1, 1, 3, 5)
    assert shape((7, 2, 3, 5), 1, 1) == (7, 2, 3, 5)
    assert masks.key_keep(torch.ones(7, 5), 2).shape == (7, 1, 1, 1, 5)
    assert masks.key_keep(torch.ones(7, 5), 1, query=False).shape == (7, 1, 5)
    with pytest.raises(ValueError) as caught:
        masks.run_time_mask(torch.ones(1, 1, 3, 5), 1, 2)
    assert str(caught.value) == "mask: 4 dimensions; give 2 or 3 or 5."


def dense(q: Tensor, k: Tensor, v: Tensor, scale: float, **call: Any) -> Tensor:
    """The oracle on heads spread out: query heads g j, key and value heads g."""
    h = q.shape[-3]
    k, v = (t if t.shape[-3] in (1, h) else t.repeat_interleave(h // t.shape[-3], -3) for t in (k, v))
    k, v = (t.expand(*t.shape[:-3], h, *t.shape[-2:]) for t in (k, v))
    legs = {"n": "query", "m": "key", "h": f"head {h}", "d": q.shape[-1], "e": v.shape[-1]}
    steps = {
        "A": {"softmax": "m", "scale": scale, "of": "q[h n d] k[h m d] -> h n m"},
        "y": "A[h n m] v[h m e] -> h n e",
    }
    inputs = {"q": "h n d", "k": "h m d", "v": "h m e"}
    g = graph("", inputs, legs=legs, diagram=steps, causal=call.pop("causal"))
    return evaluate(g, {"q": q, "k": k, "v": v}, lengths={"n": q.shape[-2], "m": k.shape[-2]}, **call)["y"]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("heads", [(2, 2, 2), (4, 2, 2), (4, 1, 1), (4, 1, 4), (1, 1, 1)])
def test_fused_attention(batch: tuple[int, ...], n: int, m: int, heads: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    h, g, values = heads
    for (d, e), causal, kind in itertools.product(
        [(3, 3), (3, 5), (5, 2)], [False, True], ["none", "bool", "float", "key"]
    ):
        q, k, v = draw(*batch, h, n, d), draw(*batch, g, m, d), draw(*batch, values, m, e)
        keep, bias = torch.rand(*batch, 1, n, m) < 0.6, draw(*batch, h, n, m)
        keys = torch.rand(*batch, m) < 0.6
        mine, oracle = {
            "none": ((None, None), {}),
            "bool": ((keep, None), {"mask": keep[..., 0, :, :]}),
            "float": ((keep, bias), {"mask": torch.where(keep, bias, -math.inf)}),
            "key": ((masks.key_keep(keys, 1), None), {"key_mask": keys}),
        }[kind]
        found = softmax.attend(q, k, v, *mine, scale=0.7, causal=causal)
        wanted = dense(q, k, v, 0.7, causal=causal, **oracle)
        agree(found, wanted, [q, k, v, bias] if kind == "float" else [q, k, v])


def test_fused_attention_of_empty_rows_in_low_precision() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        q = torch.randn(2, 2, 6, 8, dtype=dtype, requires_grad=True)
        keep = torch.ones(6, 6, dtype=torch.bool)
        keep[2] = False
        y = softmax.attend(q, q, q, keep, torch.randn(6, 6))
        assert y.dtype == dtype
        assert y[:, :, 2].abs().max() == 0
        assert torch.autograd.grad(y.sum(), q)[0].isfinite().all()


def test_dropout_acts_on_the_probabilities() -> None:
    torch.manual_seed(0)
    q, v = torch.zeros(1, 1, 50, 4), torch.eye(50).view(1, 1, 50, 50)
    kept = softmax.attend(q, q, v, dropout=0.25) * 50
    assert set(kept.unique().mul(3).round().tolist()) == {0.0, 4.0}


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_normalized_divides_by_the_sum_and_eps(eps: float) -> None:
    s, keep = positive(2, 2, 3, 5), torch.rand(2, 1, 3, 5) < 0.5
    g = graph({"normalize": "m", "eps": eps, "of": "s"}, {"s": "h n m"})
    wanted = evaluate(g, {"s": s}, lengths={"n": 3, "m": 5}, mask=keep[:, 0])["y"]
    agree(maps.normalized(s, keep, eps), wanted, [s])


@pytest.mark.parametrize("dim", [-1, -2])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_entries(dim: int, k: int) -> None:
    values, by = draw(2, 5, 3, 4), draw(2, 5, 3, 4)
    ties = torch.randint(3, by.shape, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    box = {"topk": "e" if dim == -2 else "d", "k": k, "of": "v"}
    for other in (by, ties, values):
        more = {} if other is values else {"by": "b"}
        inputs = {"v": "n e d", "b": "n e d"} if more else {"v": "n e d"}
        given = {name: {"v": values, "b": other}[name] for name in inputs}
        wanted = evaluate(graph(box | more, inputs), given, lengths={"n": 5})["y"]
        agree(maps.top_entries(values, other, k, dim), wanted, [values, other])


NORMS = {"rmsnorm": maps.rms_norm, "layernorm": maps.layer_norm, "l1norm": maps.l1_norm, "l2norm": maps.l2_norm}


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("dim", "leg"), [(-1, "d"), (-2, "n")])
def test_norms(kind: str, batch: tuple[int, ...], dim: int, leg: str) -> None:
    for eps in (None, 0.25):
        x = draw(*batch, 5, 4)
        more = {} if eps is None else {"eps": eps}
        wanted = evaluate(graph({kind: leg, "of": "x", **more}, {"x": "n d"}), {"x": x}, lengths={"n": 5})["y"]
        agree(NORMS[kind](x, dim, **more), wanted, [x])


@pytest.mark.parametrize("kind", ["l1norm", "l2norm"])
def test_norms_of_zeros_are_zeros(kind: str) -> None:
    x = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    wanted = evaluate(graph({kind: "d", "of": "x"}, {"x": "n d"}), {"x": x}, lengths={"n": 3})["y"]
    agree(NORMS[kind](x, -1), wanted, [x])


@pytest.mark.parametrize("fraction", [1, 0.5])
@pytest.mark.parametrize("legs", ["n h d", "d h n", "h d n"])
def test_rotate(fraction: float, legs: str) -> None:
    sizes = {"n": 5, "h": 2, "d": 4}
    x = draw(2, *(sizes[leg] for leg in legs.split()))
    box = {"rope": "n", "along": "d", "base": 50, "fraction": fraction, "of": "x"}
    wanted = evaluate(graph(box, {"x": legs}), {"x": x}, lengths={"n": 5})["y"]
    dims = [legs.split().index(leg) - 3 for leg in "nd"]
    agree(positions.rotate(x, positions.query_positions(5, 5), *dims, 50, int(4 * fraction)), wanted, [x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotations_of_one_position_are_made_once_and_take_gradients(dtype: torch.dtype) -> None:
    """Asked for in inference first, whose tensors no backward may keep; a position of another number is another one."""
    many = positions.rotations(torch.arange(70), 50, 4, dtype)
    for at in range(70):
        with torch.inference_mode():
            positions.rotations(torch.tensor([at]), 50, 4, dtype)
        one = positions.rotations(torch.tensor([at]), 50, 4, dtype)
        assert one is positions.rotations(torch.tensor([at]), 50, 4, dtype)
        for got, wanted in zip(one, many, strict=True):
            torch.testing.assert_close(got, wanted[at : at + 1], rtol=0, atol=0)
    x = torch.randn(1, 1, 4, dtype=dtype, requires_grad=True)
    positions.rotate(x, torch.tensor([7]), -2, -1, 50, 4).sum().backward()
    assert x.grad is not None


def test_another_thread_may_clear_the_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cleared(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value)
            self.clear()

    monkeypatch.setattr(positions, "STEP", Cleared())
    found, wanted = (positions.rotations(at, 50, 4, torch.float32) for at in (torch.tensor([3]), torch.tensor([3, 3])))
    torch.testing.assert_close([*found], [x[:1] for x in wanted])


def test_rotations_of_one_position_are_traced_and_nothing_traced_is_kept() -> None:
    def rotated(x: Tensor) -> Tensor:
        return positions.rotate(x, torch.arange(31, 32), -2, -1, 51, 4)

    x = torch.randn(1, 1, 4)
    for run in (torch.func.functionalize(rotated), make_fx(rotated)(x), rotated):
        found = run(x)
        assert not torch._is_functional_tensor(found)
        torch.testing.assert_close(
            found, positions.rotate(x.expand(1, 2, 4), torch.arange(30, 32), -2, -1, 51, 4)[:, 1:]
        )


@pytest.mark.parametrize(("n", "m"), [*SIZES, (0, 3), (3, 0)])
@pytest.mark.parametrize("reach", [None, 1, 2, 9])
@pytest.mark.parametrize("one_table", [False, True])
def test_relative_to_key(n: int, m: int, reach: int | None, one_table: bool) -> None:
    width = n + m - 1 if reach is None else 2 * reach + 1
    x = draw(2, 2, 1 if one_table else n, width)
    there = positions.distance(n, m)
    index = there + n - 1 if reach is None else there.clamp(-reach, reach) + reach
    wanted = x.expand(2, 2, n, width).gather(-1, index.expand(2, 2, n, m))
    agree(positions.relative_to_key(x, n, m, reach), wanted, [x])


@pytest.mark.parametrize(("written", "ours"), [
    ("elu1", maps.elu1), ("elu1_neg", maps.elu1_neg), ("softcap(2)", lambda x: maps.softcap(x, 2.0))
])  # fmt: skip
def test_maps(written: str, ours: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([[-3.0, -0.5, 0.0, 2.0]], dtype=torch.float64, requires_grad=True)
    wanted = evaluate(graph({"map": written, "of": "x"}, {"x": "n d"}), {"x": x}, lengths={"n": 1})["y"]
    agree(ours(x), wanted, [x])


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_tables_of_positions(n: int, m: int) -> None:
    values = {"D": {"legs": "n m", "value": "distance"}, "T": {"legs": "n d", "value": "sinusoid"}}
    g = graph("D[n m] T[n d] x[n d] z[m d] -> n d", {"x": "n d", "z": "m d"}, constants=values,
              legs={"n": "query", "m": "key", "d": "head 4"})  # fmt: skip
    given = {"x": torch.zeros(n, 4, dtype=torch.float64), "z": torch.zeros(m, 4, dtype=torch.float64)}
    wanted = evaluate(g, given, lengths={"n": n, "m": m})
    assert torch.equal(positions.distance(n, m).double(), wanted["D"])
    table = positions.sinusoid(positions.query_positions(n, m), 4, torch.float64)
    torch.testing.assert_close(table, wanted["T"])


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12])
def test_alibi_slopes(heads: int) -> None:
    g = graph("x[n h] a[h] -> n h", {"x": "n h"}, constants={"a": {"legs": "h", "value": "alibi_slopes"}},
              legs={"h": f"head {heads}", "n": "query"})  # fmt: skip
    wanted = evaluate(g, {"x": torch.zeros(1, heads, dtype=torch.float64)}, lengths={"n": 1})["a"]
    torch.testing.assert_close(positions.alibi_slopes(heads, None, torch.float64), wanted)


def checked(function: Callable[..., Tensor], *arguments: Any) -> bool:
    return torch.autograd.gradcheck(function, arguments, check_batched_grad=False)


def test_gradients_against_differences() -> None:
    torch.manual_seed(0)
    keep = torch.tensor([[True, False, True], [False, False, False]])
    s, q, v = positive(2, 2, 3), draw(2, 2, 3), draw(2, 3, 3)
    assert checked(softmax.masked_softmax, s, keep, draw(2, 3))
    assert checked(maps.normalized, s, keep)
    assert checked(maps.masked_logsumexp, s, keep)
    assert checked(maps.masked_mean, s, keep)
    assert checked(softmax.attend, q, v, v, keep, draw(2, 3))
    assert checked(positions.relative_to_key, draw(2, 2, 4), 2, 3)


def modules() -> list[Any]:
    folder = Path(tensornet_attn.runtime.__file__).parent
    return [import_module(f"tensornet_attn.runtime.{path.stem}") for path in sorted(folder.glob("[a-z]*.py"))]


def functions() -> dict[str, Callable[..., Any]]:
    own = [
        (name, f)
        for module in modules()
        for name, f in vars(module).items()
        if inspect.isfunction(f) and f.__name__ == name
    ]
    return {name: f for name, f in own if f.__module__.startswith("tensornet_attn.runtime.")}


@pytest.mark.parametrize("name", sorted(functions().keys() - {"cpp_built", "cpp_compiled"}))  # a file alone builds none
def test_each_function_can_be_carried_alone(name: str) -> None:
    """It stands on torch, nn, F, Tensor, math, builtins and other functions of the folder, and says what it does."""
    function = functions()[name]
    tree = ast.parse(inspect.getsource(function)).body[0]
    loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    stored |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    stored |= {str(node.name) for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)}
    given = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    known = {name.partition(".")[0] for name in MODULES}
    functions_there = library(plain=function.__module__ == PLAIN)
    assert loaded - stored - given <= {"torch", "nn", "F", "Tensor", "math", *known, *dir(builtins), *functions_there}
    assert inspect.getdoc(function)


def test_names_of_functions_are_unique() -> None:
    """Those of plain.py stand for others of the same name on purpose."""
    names = [name for module in modules() for name, f in vars(module).items()
             if inspect.isfunction(f) and f.__module__ == module.__name__ != PLAIN]  # fmt: skip
    assert len(names) == len(set(names))
