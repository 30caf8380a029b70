"""What is computed a block of queries at a time, why other steps are not, and that the result is the same."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.blocks import BUDGET, LEAST
from tensornet_attn.cost.devices import GENERIC
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Kernel
from tensornet_attn.kernels import blocks
from tensornet_attn.kernels.blocks import block_of, keys_of, rows_of
from tensornet_attn.plan.cache import LruCache
from tensornet_attn.plan.make import make_plan
from tensornet_attn.runtime import blockwise
from tensornet_attn.tiles.legs import quadratic
from tests.agreement import same_outcome
from tests.plan.blockwise_cases import MAPPED, READ, REFUSED, TAKEN, design

from .test_linear import draw

pytestmark = pytest.mark.usefixtures("in_blocks")


def plan_of(source: Any) -> Any:
    return make_plan(build(ta.load(source)))


def kernels(source: Any) -> list[Any]:
    steps = plan_of(source).schedule.steps
    return [step for step in steps if isinstance(step.op, Kernel) and step.op.kind == "blockwise"]


def modules(source: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Ours, in blocks of two rows, and the oracle, with the same weights."""
    monkeypatch.setattr(blocks, "LEAST", 2)
    monkeypatch.setattr(blocks, "budget_of", lambda device: 4)
    for cache in ("plan.make.PLANS", "compiler._sources"):  # nothing of these blocks is left for others
        monkeypatch.setattr(f"tensornet_attn.{cache}", LruCache(most=4))
    loaded = ta.load(source)
    ours, oracle = (ta.compile(loaded, backend, dtype=torch.float64) for backend in ("torch", "reference"))
    state = {name: draw(*value.shape, seed=i) for i, (name, value) in enumerate(oracle.state_dict().items())}
    ours.load_state_dict(state)
    oracle.load_state_dict(state)
    return ours.eval(), oracle.eval()


@pytest.mark.parametrize("name", TAKEN)
def test_no_tensor_of_queries_and_keys_is_left(name: str) -> None:
    schedule = plan_of(TAKEN[name]).schedule
    assert [step.name for step in schedule.steps if quadratic(schedule, step.legs)] == []
    assert kernels(TAKEN[name])


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5), (3, 7), (7, 3), (1, 6)])
def test_the_result_is_the_same(name: str, n: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, oracle = modules(TAKEN[name], monkeypatch)
    assert "(2, 1" in ours.source
    x, z, keys = draw(2, n, 6), draw(2, m, 6, seed=1), draw(2, m, seed=2) < 1
    noise = {"noise": {"eps": draw(2, 2, n, m, seed=4)}} if "eps" in str(TAKEN[name].get("noise")) else {}
    same_outcome(ours, oracle, [x, z], **noise)
    if any(box in str(TAKEN[name]["diagram"]["A"]) for box in ("'softmax': 'm'", "normalize", "keep")):
        same_outcome(ours, oracle, [x, z], mask=draw(n, m, seed=3) < 1, key_mask=keys, **noise)
        heads = oracle.plan.graph.leg["h"].size
        same_outcome(ours, oracle, [x, z], mask=draw(2, heads, n, m, seed=3) < 1, **noise)


def test_no_gradient_of_a_block_outlives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next block takes its memory."""
    ours, _ = modules(TAKEN["a map on the scores"], monkeypatch)
    alive, of_last_block = list[int](), list[weakref.ref[torch.Tensor]]()
    whole = blockwise.backward_of_block

    def watched(*arguments: Any) -> tuple[torch.Tensor, ...]:
        alive.append(sum(reference() is not None for reference in of_last_block))
        gradients = whole(*arguments)
        of_last_block[:] = map(weakref.ref, gradients)
        return gradients

    monkeypatch.setattr(blockwise, "backward_of_block", watched)
    ours(draw(2, 7, 6), draw(2, 5, 6, seed=1)).sum().backward()
    assert len(alive) > 2
    assert not any(alive)


WRITTEN_OUT = [name for name in TAKEN if "positions" in name] + ["the most of each pair"]


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_gradients_without_autograd_have_derivatives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for module in modules(TAKEN[name], monkeypatch):
        x, z = draw(2, 5, 6).requires_grad_(), draw(2, 7, 6, seed=1).requires_grad_()
        (first,) = torch.autograd.grad(module(x, z).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.sin().sum(), (x, z, *module.parameters())))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    source, reason = REFUSED[name]
    found = {against for region in plan_of(source).regions for low in region.refused for against in low.against}
    assert reason in found
    assert kernels(source) == []


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5)])
def test_what_is_refused_is_right_as_well(name: str, n: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, oracle = modules(REFUSED[name][0], monkeypatch)
    noise = {"noise": {"eps": draw(2, 2, n, m, seed=4)}} if name == "noise used twice" else {}
    same_outcome(ours, oracle, [draw(2, n, 6), draw(2, m, 6, seed=1)], **noise)


def test_a_state_that_reads_both_legs_is_updated_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"seen": {"legs": "h", "init": "zeros", "update": "afterwards"}}
    after = {"mean": "n", "of": {"mean": "m", "of": "A"}}
    source = design(MAPPED, READ.replace("->", "+ seen[h] b[h] x[n f] ->"), state=state, afterwards=after)
    ours, oracle = modules(source, monkeypatch)
    for module in (ours, oracle):
        module.train()(draw(2, 5, 6), draw(2, 5, 6, seed=1))
    torch.testing.assert_close(ours.state_dict(), oracle.state_dict())


def test_one_group_for_each_map_and_one_kernel_for_each_result() -> None:
    assert [step.name for step in kernels(TAKEN["read twice"])] == ["y.p1", "y.p3"]
    assert [step.op.steps for step in kernels(TAKEN["a map on the scores"])] == [("A.of.of", "A.of", "A", "y.p1")]


THSA = {"extends": "thsa", "tensornet": 1, "name": "two", "legs": {"f": 8, "r": "head 32", "s": "head 32"}}


def test_what_is_spread_over_more_legs_is_made_in_the_block() -> None:
    (kernel,) = kernels("thsa")
    assert kernel.op.steps == ("A.of.p1", "A.of", "A", "y.p1")
    assert sorted(use.name for use in kernel.op.uses) == ["C", "K", "Q", "V"]
    assert keys_of(plan_of("thsa").schedule, kernel) == 512  # r s numbers of a row, r numbers of a row and a key


def test_what_is_read_elsewhere_too_is_made_outside() -> None:
    both = THSA | {"legs": THSA["legs"] | {"f": 64}, "diagram": {
        "T": "C[r s] Q[n s] -> r s n",
        "A": {"softmax": "m", "of": {"map": "tanh", "of": "T[r s n] K[m s] -> r n m"}},
        "y": "A[r n m] V[m r] Wo[r f] + T[r s n] C[r s] Wo[r f] -> n f",
    }}  # fmt: skip
    alone = both | {"diagram": both["diagram"] | {"y": "A[r n m] V[m r] Wo[r f] -> n f"}}
    assert [kernel.op.steps[0] for kernel in kernels(alone)] == ["T"]
    assert [kernel.op.steps[0] for kernel in kernels(both)] == ["A.of.of"]


def test_the_block_keeps_to_its_budget() -> None:
    loaded = build(ta.load("thsa"))
    (kernel,) = kernels("thsa")
    least, pairs = block_of(loaded, kernel, GENERIC)
    assert (least, 4 * 512 * pairs) == (LEAST, BUDGET)
    assert rows_of(loaded, kernel, 16, GENERIC) == LEAST  # the rows spread over r and s count, not the few keys
    (kernel,) = kernels(TAKEN["a map on the scores"])
    assert rows_of(build(ta.load(TAKEN["a map on the scores"])), kernel, 1024, GENERIC) == BUDGET // 4 // 2 // 1024


def test_a_block_has_no_more_rows_than_there_are_queries() -> None:
    plan = ta.compile("talking_heads", n=100, device_costs="generic").explain()
    assert "blockwise: 100 queries at a time" in str(plan)


def test_what_is_kept_anyway_is_not_computed_in_blocks() -> None:
    """Where the lengths have small maxima, operands are larger than all scores."""
    short = design(MAPPED, legs={"n": "query 1", "m": "key 1", "d": "head 64", "f": 128})
    assert kernels(short) == []
    found = [low for region in plan_of(short).regions for low in region.refused if low.name == "blocks of queries"]
    assert found[0].against == ("blocks would save 6 elements, no more than the 384 of operands",)
