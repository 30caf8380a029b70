"""Auxiliary losses of compiled designs: when they are computed, that all backends agree, and torch's machinery."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim, export
from torch.func import functional_call, grad
from torch.utils.checkpoint import checkpoint

import tensornet_attn as ta
from tests.losses import DESIGNS, EXPERTS, inputs, made, total
from tests.refusals import refusal

SEEN = torch.tensor([[True, True, False, True, False], [False, True, True, True, True], [False] * 5])
each = pytest.mark.parametrize("name", DESIGNS)
FORWARD = """\
        if self.training or losses:
            p = logits.softmax(-1)  # ... n e

            keep, _ = visible(None, None, key_mask, x.ndim - 2, 1, False)
            router = masked_mean(p.transpose(-2, -1), keep)  # ... e

        if self.training:
            update_(self.usage, router, x)

        if not losses:
            return y  # ... n f

        one = torch.ones(n, self.Ws.shape[1], device=x.device, dtype=x.dtype)  # n e
"""


def same(got: object, want: object) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def outcome(module: Any, x: Tensor, **see: Any) -> list[Tensor]:
    """Output, losses, states, and gradients of inputs and weights of what a trainer minimises."""
    x = x.clone().requires_grad_()
    y, losses = module(x, losses=True, **see)
    weights = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(total(module, y, losses), [x, *weights])
    return [y, *losses.values(), *(value.clone() for value in module.buffers()), *found]


@each
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_backends_agree(name: str, training: bool, causal: bool, masked: bool) -> None:
    oracle, module = made(name, "reference", causal=causal), made(name, causal=causal)
    module.load_state_dict(oracle.state_dict())
    see = {"key_mask": SEEN} if masked and oracle.plan.graph.key else {}
    same(outcome(module.train(training), inputs(), **see), outcome(oracle.train(training), inputs(), **see))


@each
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_losses_are_computed_where_they_are_asked_for(name: str, backend: str) -> None:
    module, x = made(name, backend).eval(), inputs()
    y = module(x)
    assert isinstance(y, Tensor)
    pair, losses = module(x, losses=True)
    assert torch.equal(pair, y)
    assert list(losses) == list(module.design.losses) == list(module.design.loss_weights)
    assert all(value.shape == () and value.dtype == y.dtype for value in losses.values())
    assert isinstance(module.train()(x), Tensor)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_design_without_losses_has_none(backend: str) -> None:
    module = ta.compile(ta.load("mhsa", legs={"f": 6, "h": 2}), backend, dtype=torch.float64)
    y, losses = module(inputs(), losses=True)
    assert torch.equal(y, module(inputs()))
    assert losses == module.design.loss_weights == {}


def test_steps_of_losses_stand_behind_the_end_of_an_evaluation() -> None:
    module = made("experts with a state")
    assert FORWARD in module.source
    before, _, behind = module.source.partition("        if not losses:\n            return y  # ... n f\n")
    assert "    one = " not in before
    assert all(text in behind for text in ("chosen = ", "lse = ", "surprise = "))


def test_scores_that_a_loss_reads_leave_attention_fused() -> None:
    module = made("scores of fused attention")
    assert "A: fused attention: scaled_dot_product_attention" in module.explain()
    assert "peak: blockwise" in module.explain()


def test_a_loss_is_the_mean_over_the_batch_whatever_its_dimensions() -> None:
    module, x = made("experts with a state").eval(), inputs(batch=6)
    _, losses = module(x, losses=True)
    rows = [module(row, losses=True)[1] for row in x]
    for name, value in losses.items():
        same(value, torch.stack([row[name] for row in rows]).mean())
        same(value, module(x.view(2, 3, 5, 6), losses=True)[1][name])


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_losses_of_an_empty_batch_are_zero(backend: str) -> None:
    _, losses = made("experts with a state", backend).eval()(inputs()[:0], losses=True)
    assert all(value.item() == 0 for value in losses.values())


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_loss_reads_the_state_as_it_was_before_the_call(backend: str) -> None:
    module, x = made("experts with a state", backend).train(), inputs()
    module(x)
    before = module.usage.clone()
    _, losses = module(x, losses=True)
    router = module.eval().capture(x, "router")
    same(losses["drift"], (router @ before.log()).mean())
    same(module.usage, router.mean(0))


def test_a_module_that_is_called_twice_gives_losses_for_each_call() -> None:
    module, (x, z) = made("scores of fused attention"), (inputs(1), inputs(2))
    (y, first), (w, second) = module(x, losses=True), module(z, losses=True)
    found = torch.autograd.grad(total(module, y, first) + total(module, w, second), module.parameters())
    alone = [torch.autograd.grad(total(module, *module(one, losses=True)), module.parameters()) for one in (x, z)]
    same(found, tuple(a + b for a, b in zip(*alone, strict=True)))


@each
def test_a_checkpoint_passes_the_gradients_of_losses_on(name: str) -> None:
    module, x = made(name), inputs().requires_grad_()
    if list(module.buffers()):
        module.eval()  # computed again, a training call would read the state that the first one has stored
    wanted = torch.autograd.grad(total(module, *module(x, losses=True)), [x, *module.parameters()])
    y, losses = checkpoint(module, x, losses=True, use_reentrant=False)
    same(torch.autograd.grad(total(module, y, losses), [x, *module.parameters()]), wanted)


@each
@pytest.mark.parametrize("training", [False, True])
def test_one_graph_under_torch_compile(name: str, training: bool) -> None:
    torch._dynamo.reset()
    plain, module = (made(name, dtype=torch.float32).train(training) for _ in range(2))
    module.load_state_dict(plain.state_dict())
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, n in [(2, 24), (3, 40), (5, 33)]:
        x = inputs(batch=batch, n=n, dtype=torch.float32).requires_grad_()
        pairs = [compiled(x, losses=True), plain(x, losses=True)]
        torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-5)
        found = [
            torch.autograd.grad(total(plain, y, learned(losses, training)), [x, *one.parameters()])
            for one, (y, losses) in zip((module, plain), pairs, strict=True)
        ]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def learned(losses: dict[str, Tensor], training: bool) -> dict[str, Tensor]:
    """Those whose gradient torch.compile gets right: torch 2.13 computes what only a buffer is needed for again, when
    the call has stored another value in the buffer."""
    return {name: value for name, value in losses.items() if not (training and name == "drift")}


@each
def test_an_exported_program_gives_losses_at_any_size(name: str) -> None:
    module = made(name, dtype=torch.float32).eval()
    x = inputs(batch=3, n=40, dtype=torch.float32)
    shapes = {"x": {0: Dim("batch"), 1: Dim("n")}, "losses": None}
    program = export(module, (x,), {"losses": True}, dynamic_shapes=shapes).module()
    for batch, n in [(2, 24), (5, 33), (7, 130)]:
        x = inputs(batch=batch, n=n, dtype=torch.float32)
        torch.testing.assert_close(program(x, losses=True), module(x, losses=True), rtol=1e-4, atol=1e-4)


@each
def test_copies_give_the_same_losses(name: str, tmp_path: Path) -> None:
    module, x = made(name).eval(), inputs()
    ta.save(module, tmp_path / "module.pt")
    restored = ta.restore(tmp_path / "module.pt").eval()
    wanted = module(x, losses=True)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), restored):
        same(twin(x, losses=True), wanted)
        assert twin.design.loss_weights == module.design.loss_weights
    assert not {*module.design.losses} & module.state_dict().keys()


def test_functional_calls_differentiate_losses() -> None:
    module, x = made("scores of fused attention"), inputs()
    weights = dict(module.named_parameters())

    def sharp(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(module, weights, (x,), {"losses": True})[1]["sharp"]

    wanted = torch.autograd.grad(module(x, losses=True)[1]["sharp"], [module.Wq, module.Wk])
    found = grad(sharp)(weights)
    same((found["Wq"], found["Wk"]), wanted)


def test_low_precision() -> None:
    module, x = made("experts with a state", dtype=torch.float32).eval(), inputs(dtype=torch.float32)
    wanted = module(x, losses=True)[1]
    with torch.autocast("cpu", torch.bfloat16):
        found = module(x, losses=True)[1]
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].float(), value, rtol=0.05, atol=0.05)
    half = module.bfloat16()(x.bfloat16(), losses=True)[1]
    assert all(value.isfinite() and value.dtype == torch.bfloat16 for value in half.values())


@pytest.mark.slow
def test_inductor() -> None:
    module, compiled = (made("experts with a state", backend, torch.float32) for backend in ("torch", "inductor"))
    compiled.load_state_dict(module.state_dict())
    x = inputs(dtype=torch.float32)
    for one in (module, compiled):
        one.eval()
    torch.testing.assert_close(outcome(compiled, x), outcome(module, x), rtol=1e-4, atol=1e-5)


OLD = """\
tensornet: 1
name: old
legs: {n: query, m: key, f: 6}
inputs: {x: n f, losses: m f}
diagram:
  A: {softmax: m, of: "x[n f] losses[m f] -> n m"}
  y: A[n m] losses[m f] -> n f
output: y
"""


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_an_input_called_losses_is_still_given_by_name(backend: str) -> None:
    module, x, z = ta.compile(OLD, backend, dtype=torch.float64), inputs(1), inputs(2)
    assert torch.equal(module(x, losses=z), module(x, z))
    same(module(x, z, losses=True), (module(x, z), {}))


def test_a_step_called_losses_keeps_out_of_the_way() -> None:
    design = EXPERTS.replace("balance: (e / k)", "losses: (e / k)").replace("balance: 1 / 100", "losses: 1 / 100")
    module, oracle = (ta.compile(design, backend, dtype=torch.float64).eval() for backend in ("torch", "reference"))
    module.load_state_dict(oracle.state_dict())
    same(module(inputs(), losses=True), oracle(inputs(), losses=True))


@pytest.mark.parametrize(("given", "kind"), [(inputs(), "Tensor"), (["balance"], "list"), (1, "int")])
def test_losses_is_true_or_false(given: Any, kind: str) -> None:
    assert refusal(made("experts with a state"), inputs(), losses=given) == (
        f"experts: 'losses' is a {kind}; give True or False."
    )
