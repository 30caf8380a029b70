"""Scores that decay: the keys are summed first all the same, no number is too large, and the result is the same."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.cost.target import Target
from tensornet_attn.graph import build
from tensornet_attn.plan.make import make_plan
from tensornet_attn.runtime.decay import decay_attention, decayed_reads
from tensornet_attn.runtime.linear import Term
from tensornet_attn.runtime.softmax import masked_softmax
from tests.agreement import same_outcome

from .decay_cases import ALONE, FADED, FADING, SHARED, UNFADING, decayed, exp
from .test_linear import CHOSEN, check_refusal, draw, modules, same_with_masks

SHAPES = [(5, 5), (3, 40), (40, 3), (70, 70), (1, 1)]


@pytest.mark.parametrize("name", FADING)
def test_the_keys_are_summed_first_and_the_result_is_the_same(name: str) -> None:
    ours, oracle = modules(FADING[name], False)
    assert f"A.o: {CHOSEN}" in ours.explain()
    shapes = [(n, m) for n, m in SHAPES if n == m or not build(ta.load(FADING[name])).tied]
    for (n, m), batch in zip(shapes, itertools.cycle([(2,), ()]), strict=False):
        same_with_masks(ours, oracle, n, m, batch)
    inputs = [draw(2, 9, 4), draw(2, 9, 4, seed=1)]
    same_outcome(ours, oracle, inputs, mask=draw(9, 9, seed=3) > -0.3)


@pytest.mark.parametrize("name", SHARED)
def test_what_fades_may_be_read_elsewhere_too(name: str) -> None:
    ours, oracle = modules(SHARED[name], False)
    told = [region.chosen for region in ours.plan.regions]
    assert sum("linear attention" in text for text in told) == (1 if name == "an exponent" else 2), told
    assert not any("queries at a time" in text or "dense keep" in text for text in told), told
    for n, batch in ((5, (2,)), (70, ()), (1, (2,))):
        inputs = [draw(*batch, n, 4), draw(*batch, n, 4, seed=1)]
        same_outcome(ours, oracle, inputs)
        same_outcome(ours, oracle, inputs, key_mask=draw(*batch, n, seed=2) > -0.3)
    same_outcome(ours, oracle, inputs, mask=draw(n, n, seed=3) > -0.3)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ALONE)
def test_a_softmax_that_compares_nothing(name: str, causal: bool) -> None:
    source = json.loads(json.dumps(ALONE[name]))
    if not causal:
        del source["diagram"]["A"]["mask"]
    ours, oracle = modules(source, False)
    assert (f"A.o: {CHOSEN}" in ours.explain()) == (causal or not name.endswith(("the distance", "own position")))
    shapes = [(n, m) for n, m in SHAPES if n == m or not build(ta.load(source)).tied]
    for n, m in shapes:
        floats = [] if "same" in source["diagram"] else [draw(n, m, seed=3)]  # a keep box takes no float mask
        same_with_masks(ours, oracle, n, m, (2,), *floats)


@pytest.mark.parametrize(("n", "m"), [(40, 40), (7, 40), (40, 7)])
@pytest.mark.parametrize("more", [-1000.0, 0.0, 1000.0])
def test_more_of_the_own_position_of_any_size(n: int, m: int, more: float) -> None:
    """Values and gradients are those of scores that are made, and what a hidden key has may be no number."""
    q, k, v = torch.ones(n, 1, dtype=torch.float64), torch.ones(m, 1, dtype=torch.float64), draw(2, 1, m, 3)
    a, b, own = draw(2, 1, n, 1, seed=1), 3 * draw(2, 1, m, 1, seed=2), more + 5 * draw(2, 1, m, 1, seed=3)
    seen = torch.arange(m) % 3 != 1
    own = torch.where(seen[:, None], own, torch.nan)
    leaves = [x.detach().requires_grad_() for x in (v, a, b, own)]
    v, a, b, own = leaves
    found = []
    for mask in (None, torch.ones(n, m, dtype=torch.bool)):
        options = {"key_mask": seen.expand(2, m), "batch": 1, "heads": 1, "softmax": True, "causal": True, "chunk": 4}
        y = decay_attention([Term(q, k, a, b, own)], v, mask, **options)
        found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for ours, dense in zip(*found, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, dense, rtol=1e-9, atol=1e-12)


def test_weights_of_any_size() -> None:
    """exp(1000) is no number, and of a row that sees only small weights none is lost."""
    b = torch.cat((torch.linspace(0, 1000, 60), torch.linspace(1000, -3000, 40)))[None, None, :, None]
    v, ones, seen = draw(1, 1, 100, 3).float(), torch.ones(1, 1, 100, 1), torch.arange(100)[None] % 7 != 0
    for keys in (None, seen):
        for causal in (True, False):
            how = {"key_mask": keys, "batch": 1, "heads": 1, "softmax": True, "causal": causal, "chunk": 4}
            found = decay_attention([Term(ones, ones, torch.zeros_like(b), b)], v, None, **how)
            keep = torch.ones(100, 100, dtype=torch.bool).tril() if causal else torch.ones(100, 100, dtype=torch.bool)
            keep = keep if keys is None else keep & keys
            wanted = masked_softmax(-b.mT.double().expand(1, 1, 100, 100), keep) @ v.double()
            torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-6)


# By Inductor those that call what no other does; `tests/test_fullgraph.py` traces all.
BY_INDUCTOR = ["by distance", "by distance, kept", "by slopes, with eps", "by gates", "by features, kept"]
BY_INDUCTOR += ["a softmax of numbers of keys", "with more of the own position"]


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_INDUCTOR)
def test_compiled(name: str) -> None:
    ours, oracle = modules((FADING | ALONE)[name], False, "inductor")
    for length in (5, 70, 40):
        same_outcome(ours, oracle, [draw(2, length, 4), draw(2, length, 4, seed=1)])


@pytest.mark.parametrize("name", UNFADING)
def test_refused_with_the_reason_and_still_right(name: str) -> None:
    check_refusal(*UNFADING[name], False, CHOSEN, "linear attention")


def test_over_all_keys() -> None:
    source = decayed(D=exp("q[n h] - k[m h] -> h n m"))
    del source["diagram"]["A"]["mask"]
    ours, oracle = modules(source, False)
    assert f"A.o: {CHOSEN}" in ours.explain()
    same_outcome(ours, oracle, [draw(2, 5, 4), draw(2, 7, 4, seed=1)], key_mask=draw(2, 7, seed=2) > -0.3)


def exactly(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """What is read, by the scores."""
    n, m = q.shape[-2], k.shape[-2]
    seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    by = (a[..., :, None, :] - b[..., None, :, :]).masked_fill(~seen[..., None], -torch.inf).exp()
    return (q[..., :, None, :] * k[..., None, :, :] * by).sum(-1) @ v


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("stretch", [0, 8, 32, 512])
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_fading_by_any_numbers(width: int, stretch: int, sign: int) -> None:
    """Decay, growing, and neither; within a stretch and over stretches."""
    q, k, v = (draw(2, 75, size, seed=i) for i, size in enumerate((4, 4, 3)))
    steps = draw(2, 75, width, seed=4)
    a, b = (steps.abs() * -sign if sign else steps).cumsum(-2), (steps.abs() * -sign if sign else 2 * steps).cumsum(-2)
    operands = [x.requires_grad_() for x in (q, k, v, a, b)]
    found, wanted = decayed_reads(*operands, stretch, 8), exactly(*operands)
    g = draw(*wanted.shape, seed=6)
    ours, theirs = ([y, *torch.autograd.grad((y * g).sum(), operands)] for y in (found, wanted))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one / other.abs().max(), other / other.abs().max(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rate", [0.1, 100.0])
@pytest.mark.parametrize("shared", [True, False])
def test_heads_with_a_decay_and_a_value_each(rate: float, shared: bool) -> None:
    """As slots have them: they are read side by side, also if all share a decay, and where exp overflows."""
    q, k = (draw(2, 1, 70, 4, seed=i).requires_grad_() for i in range(2))
    v = draw(2, 5, 70, 1, seed=2).requires_grad_()
    b = (rate * draw(2, 1 if shared else 5, 70, 1, seed=3).abs()).cumsum(-2).neg().requires_grad_()
    read = decay_attention([Term(q, k, b, b)], v, batch=1, heads=2, normalize=False, causal=True, chunk=16)
    found, wanted = (torch.autograd.grad(y.sin().sum(), (q, k, v, b)) for y in (read, exactly(q, k, v, b, b)))
    torch.testing.assert_close(read, exactly(q, k, v, b, b), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_hidden_keys_count_for_nothing_whatever_they_fade_by(causal: bool, normalize: bool) -> None:
    """Nor where a whole chunk is hidden, or all keys."""
    q, k, v, a, b = (draw(3, 1, 40, size, seed=i) for i, size in enumerate((4, 4, 3, 1, 1)))
    seen = torch.ones(3, 40, dtype=torch.bool)
    seen[0, :18], seen[1, 16:], seen[2] = False, False, False
    how = {"batch": 1, "heads": 1, "normalize": normalize, "causal": causal, "chunk": 4}
    results = []
    for number in (0, -1e4, 1e4):
        operands = [x.clone().requires_grad_() for x in (q.square(), k.square(), v, a, b)]
        own = torch.where(seen[:, None, :, None], operands[4], number)
        y = decay_attention([Term(operands[0], operands[1], operands[3], own)], operands[2], None, seen, **how)
        results.append([y, *torch.autograd.grad((y * draw(*y.shape, seed=7)).sum(), operands)])
    assert all(x.isfinite().all() for x in results[0])
    assert not results[0][0][2].any()
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0)


def retention(rate: float) -> Any:
    source = decayed(FADED, D=exp(f"-{rate} * gap[n m] -> n m"), kind="keep")
    source["diagram"]["A"]["of"] = "Q[n h d] K[m h d] D[n m] -> h n m"
    return ta.load(source)


@pytest.mark.parametrize("rate", [0.5, 3.0, 30.0])
def test_far_keys_are_as_exact_as_near_ones_and_nothing_overflows(rate: float) -> None:
    """In float32 exp(100) is infinite, as within a chunk by 30, and 0.5 * 3000 is known to 1e-4: neither comes in."""
    single, double = ta.compile(retention(rate)), ta.compile(retention(rate)).double()
    double.load_state_dict(single.state_dict())
    results = []
    for module, dtype in ((single, torch.float32), (double, torch.float64)):
        inputs = [draw(3000, 4, seed=i).to(dtype).requires_grad_() for i in range(2)]
        y = module(*inputs)
        results.append([y, *torch.autograd.grad(y[-50:].square().sum(), inputs)])
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() < 5e-6 * other.abs().max()


def test_in_bfloat16_gates_are_added_up_in_float32() -> None:
    """One rounding of a sum of 700 is 2 to 4, and exp(4) is 55."""
    source = ta.load(FADING["by gates"])
    module, exact = ta.compile(source, dtype=torch.bfloat16), ta.compile(source, dtype=torch.float64)
    exact.load_state_dict(module.state_dict())
    inputs = [draw(2, 1000, 4, seed=i).bfloat16() for i in range(2)]
    wanted = exact(*(x.double() for x in inputs))
    assert (module(*inputs).double() - wanted).abs().max() < 0.03 * wanted.abs().max()


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("by distance", [("torch", True), ("triton", False), ("triton", True), ("triton", True)]),
        ("by features", [("torch", True), ("triton", False), ("triton", True), ("triton", True)]),
    ],
)
def test_triton_keeps_kernels_of_scores_where_sequences_are_not_long(name: str, ways: list[tuple[str, bool]]) -> None:
    """Kernels of a decay are several; those of scores compute an exponential for each feature, if features decay."""
    graph, found = build(ta.load(FADING[name])), []
    for backend, n, strict in (
        ("torch", 128, False),
        ("triton", 16, False),
        ("triton", 8192, False),
        ("triton", 8192, True),
    ):
        plan = make_plan(graph, backend, Target(n=n, m=n, strict=strict))
        (region,) = (r for r in plan.regions if "decayed by 'D'" in r.chosen or "Triton kernels" in r.chosen)
        found.append((region.backend, "decay" in region.chosen))
    assert found == ways
    told = make_plan(graph, "triton", Target(n=16, m=16)).explain()
    assert "\n    not linear attention: summing over the keys first would take " in told


def test_the_kernels_of_a_softmax_of_numbers_of_keys() -> None:
    graph = build(ta.load(ALONE["numbers of keys, by distance"]))
    short, long = (make_plan(graph, "triton", Target(n=n, m=n)).backends for n in (64, 8192))
    assert (short["y.p1"], long["A.o"]) == ("triton", "triton")


@pytest.mark.parametrize("name", ["by features", pytest.param("by distance, kept", marks=pytest.mark.slow)])
def test_exported_for_any_length(name: str) -> None:
    module = ta.compile(FADING[name], dtype=torch.float64)
    n = torch.export.Dim("n", min=2, max=4096)
    inputs = [draw(2, 40, 4, seed=i) for i in range(2)]
    exported = torch.export.export(module, tuple(inputs), dynamic_shapes=({1: n}, {1: n})).module()
    for length in (2, 40, 150):
        inputs = [draw(2, length, 4, seed=i) for i in range(2)]
        torch.testing.assert_close(exported(*inputs), module(*inputs))


@pytest.mark.parametrize("name", ["by gates and distance", "by features"])
def test_the_source_stands_alone(name: str) -> None:
    """In a process that has nothing but torch: a name that only this package knows would be missed there."""
    source = ta.emit_source(FADING[name])
    words = [
        sys.executable,
        "-c",
        f"import sys; sys.modules['tensornet_attn'] = None\n{source}\nprint(One()(x, x).shape)",
    ]
    words[-1] = words[-1].replace("print(", "x = torch.randn(2, 70, 4)\nprint(")
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert told.stdout == "torch.Size([2, 70, 4])\n", told.stderr
