"""The compiled module as an nn.Module: what it takes, what it holds, and that it can be copied, moved and stored."""

from __future__ import annotations

import copy
import io
import pickle
import pickletools
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call

import tensornet_attn as ta
from tests.designs.case import N
from tests.designs.cases import BACKENDS, CASES, compiled, inputs_of
from tests.refusals import refusal

F64 = torch.float64
backends = pytest.mark.parametrize("backend", BACKENDS)
everything = pytest.mark.parametrize("name", CASES)


def same(got: object, want: object) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@everything
def test_state_dicts_are_those_of_the_design_on_every_backend(name: str) -> None:
    modules = [compiled(name, backend) for backend in BACKENDS]
    graph = modules[0].plan.graph
    stored = [tensor for tensor in graph.tensors if tensor.role in ("weight", "state")]
    wanted = {tensor.name: graph.shape_of(tensor.name) for tensor in stored}
    for module in modules:
        assert {key: tuple(value.shape) for key, value in module.state_dict().items()} == wanted
        trained = {t.name for t in stored if t.role == "weight" and not t.frozen}
        assert {key for key, value in module.named_parameters() if value.requires_grad} == trained
    modules[1].load_state_dict(modules[0].state_dict())


@everything
def test_one_seed_gives_the_same_weights_on_every_backend(name: str) -> None:
    case, states = CASES[name], []
    for backend in BACKENDS:
        torch.manual_seed(3)
        module = ta.compile(ta.load(name, legs=case.legs, settings=case.settings), backend)
        states.append(module.state_dict())
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), key


@backends
@everything
def test_any_number_of_batch_dimensions(name: str, backend: str) -> None:
    module, xs = compiled(name, backend), inputs_of(name, batch=6)
    y = module(*xs)
    same(module(*(x.unflatten(0, (3, 1, 2)) for x in xs)), y.unflatten(0, (3, 1, 2)))
    same(module(*(x[0] for x in xs)), y[0])
    empty = [x[:0].requires_grad_() for x in xs]
    out = module.train()(*empty)
    assert out.shape == (0, *y.shape[1:])
    out.sum().backward()
    assert all(x.grad is not None for x in empty)
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters() if p.requires_grad)
    assert all(value.isfinite().all() for value in module.state_dict().values())


@pytest.mark.parametrize("name", ["mhsa", "cross", "gqa", "thsa", "hard_fish", "mgk_em", "linear", "epa"])
def test_masks_may_have_several_forms(name: str) -> None:
    module, xs = compiled(name, "torch", False), inputs_of(name)
    n, m = xs[0].shape[1], xs[-1].shape[1]
    mask = torch.rand(n, m) < 0.5
    y = module(*xs, mask=mask)
    same(module(*xs, mask=mask.expand(2, n, m)), y)
    if name != "linear":  # nothing can be added to what is normalised
        same(module(*xs, mask=torch.where(mask, 0.0, -torch.inf)), y)
    box = next(step.op for step in module.plan.graph.steps if module.plan.graph.masked(step))
    heads = [module.design.legs[leg] for leg in box.operand("of").legs if leg not in ("n", "m")]
    if name != "mgk_em":  # its two boxes have other legs
        same(module(*xs, mask=mask.expand(2, *heads, n, m)), y)
    keys = torch.rand(2, m) < 0.5
    same(module(*xs, mask=mask & keys[:, None]), module(*xs, mask=mask, key_mask=keys))


@everything
def test_copies_and_pickles_compute_the_same(name: str) -> None:
    module, xs = compiled(name, "torch"), inputs_of(name)
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    others = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(stored, weights_only=False)]
    for other in others:
        same(other(*xs), module(*xs))
        assert (other.source, other.plan) == (module.source, module.plan)
        assert other.design.to_yaml() == module.design.to_yaml()
    others[0].state_dict()[next(iter(module.state_dict()))].zero_()
    assert not torch.equal(others[0](*xs), module(*xs))


def test_a_pickle_carries_the_design_and_no_code() -> None:
    data = pickle.dumps(compiled("mhsa", "torch"))
    texts = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]
    assert not any("def forward" in text or "import torch" in text for text in texts)
    assert not any("_emitted" in text for text in texts)
    program = "import pickle, sys; m = pickle.load(sys.stdin.buffer); print(m.design.name, len(m.source) > 0)"
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True)
    assert done.stdout == b"mhsa True\n"


@everything
def test_modules_live_on_meta_and_in_other_dtypes(name: str) -> None:
    case = CASES[name]
    design = ta.load(name, legs=case.legs, settings=case.settings)
    meta = ta.compile(design, "torch", device="meta", dtype=torch.bfloat16)
    assert {(value.device.type, value.dtype) for value in meta.state_dict().values()} == {("meta", torch.bfloat16)}
    xs = [x.to("meta", torch.bfloat16) for x in inputs_of(name)]
    y = meta(*xs)
    assert (y.device.type, y.dtype) == ("meta", torch.bfloat16)
    assert ta.compile(design, "torch").to(F64)(*inputs_of(name)).dtype == F64


@backends
def test_capture_gives_any_step(backend: str) -> None:
    module, (x,) = compiled("mhsa", backend), inputs_of("mhsa")
    A, V = module.capture(x, "A"), module.capture(x, "V")
    assert (A.shape, V.shape) == ((2, 3, N, N), (2, N, 3, 4))
    same(A.sum(-1), torch.ones(2, 3, N, dtype=F64))
    same(module.capture(x, "y"), module(x))
    same(module.capture(x, "Wq"), module.Wq)
    masked = module.capture(x, "A", key_mask=torch.tensor([True] * 4 + [False]).expand(2, N))
    assert not masked[..., -1].any()
    assert refusal(module.capture, x, "B").startswith("mhsa: there is no step 'B'; ")


def test_explain_says_what_was_chosen_and_what_was_refused() -> None:
    told = ta.compile("mhsa", "torch").explain().splitlines()
    assert [line for line in told if not line.startswith("    not absorbed weights: ")] == [
        "mhsa: backend torch, for training on cpu, product orders optimised for n 1024, m 1024",
        "  Q: one product",
        "  K: one product",
        "  V: one product",
        "  A: fused attention: scaled_dot_product_attention, the scores are never stored",
        "  y: one product",
    ]
    refused = ta.compile("talking_heads", "torch").explain()
    assert (
        "without a tensor of n x m elements\n    predicted: 151 milliseconds instead of 254 milliseconds\n"
        "    not fused attention: the scores are a product of 3 tensors, not two" in refused
    )
    joint = {"A": {"softmax": ["h", "m"], "scale": "d ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"}}
    design = {"tensornet": 1, "name": "joint", "extends": "mhsa", "legs": {"h": "head 2", "f": 8}, "diagram": joint}
    assert (
        "not fused attention: the scores are the logsumexp of a softmax over several legs, not a product of a query "
        "and a key tensor" in ta.compile(design, "torch").explain()
    )


def test_source_and_plan_are_there_to_read() -> None:
    module = compiled("mhsa", "torch")
    assert "class MHSA(nn.Module):" in module.source
    assert set(module.plan.backends.values()) == {"torch"}
    assert compiled("mhsa", "reference").source == ""
    assert repr(module) == "CompiledDesign(mhsa: n at run time, m at run time, f 12, h 3, d 4; backend torch)"


def test_it_is_a_part_of_larger_modules() -> None:
    inner = compiled("mhsa", "torch")
    outer = nn.Sequential(nn.LayerNorm(12, dtype=F64), inner)
    assert [key for key in outer.state_dict() if key.startswith("1.")] == ["1.Wq", "1.Wk", "1.Wv", "1.Wo"]
    outer.zero_grad()
    outer(inputs_of("mhsa")[0]).sum().backward()
    assert all(p.grad is not None for p in outer.parameters())


@everything
def test_weights_may_be_given_to_the_call(name: str) -> None:
    module, other, xs = compiled(name, "torch"), compiled(name, "torch", seed=5), inputs_of(name)
    same(functional_call(module, other.state_dict(), tuple(xs)), other(*xs))


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_backward_after_an_update_reads_the_old_state(backend: str) -> None:
    module, frozen, (x,) = compiled("mgk_em", backend), compiled("mgk_em", backend), inputs_of("mgk_em")
    first, second = module.train()(x), None
    second = module(x)
    assert not torch.equal(first, second)
    weights = list(module.parameters())
    found = torch.autograd.grad(first.sum(), weights)  # after two updates
    same(found, torch.autograd.grad(frozen.eval()(x).sum(), list(frozen.parameters())))


def test_the_state_changes_in_training_only() -> None:
    module, (x,) = compiled("mgk_em", "torch"), inputs_of("mgk_em")
    before = module.pi.clone()
    module.eval()(x)
    assert torch.equal(module.pi, before)
    with torch.no_grad():
        module.train()(x)
    assert not torch.equal(module.pi, before)
    same(module.pi.sum(-1), torch.ones(3, dtype=F64))
