"""What tools read of a compiled module: its signature, first values drawn again, its page in a notebook, its class."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.nn.utils import parametrize

import tensornet_attn as ta
from tensornet_attn.draw import render
from tensornet_attn.nn.module import CompiledDesign
from tests.designs.cases import CASES, compiled, inputs_of

PACKED = ["cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen", "position_ids"]
OPTIONS = ["mask", "key_mask", "noise", "losses", "cache", *PACKED]


@pytest.mark.parametrize(
    ("name", "needed", "optional"), [("mhsa", ["x"], ["memory"]), ("cross", ["x", "memory"], []), ("mlp", ["x"], [])]
)
def test_the_forward_names_the_inputs(name: str, needed: list[str], optional: list[str]) -> None:
    module = ta.compile(name)
    found = inspect.signature(module.forward).parameters
    assert list(found) == [*needed, *optional, *OPTIONS]
    assert [one for one, each in found.items() if each.default is each.empty] == needed
    assert {found[one].default for one in optional} <= {None}
    assert {found[one].kind for one in OPTIONS} == {inspect.Parameter.KEYWORD_ONLY}
    assert inspect.signature(module) == inspect.signature(module.forward)


def test_the_class_is_still_called_with_a_plan() -> None:
    for kind in (CompiledDesign, type(ta.compile("mhsa"))):
        assert list(inspect.signature(kind).parameters)[:3] == ["design", "plan", "make"]


def named(inputs: dict[str, Any], product: str, **more: Any) -> dict[str, Any]:
    legs = {"n": "query", "f": 4}
    return {
        "tensornet": 1,
        "name": "t",
        "legs": legs,
        "inputs": inputs,
        "diagram": {"y": product},
        "output": "y",
    } | more


def test_inputs_of_any_name_and_order() -> None:
    inputs = {"a": "n f", "x": {"legs": "n f", "default": "a"}, "losses": "n f"}
    module = ta.compile(named(inputs, "a[n f] + x[n f] + losses[n f] -> n f"))
    options = ["mask", "key_mask", "noise", "cache", *PACKED]
    assert list(inspect.signature(module).parameters) == ["a", "x", "losses", *options]
    x = torch.randn(3, 4)
    for given in ((x, None, x), (x, x, x)):
        torch.testing.assert_close(module(*given), 3 * x)
        assert inspect.signature(module).bind(*given).arguments == dict(zip(inputs, given, strict=True))
    torch.testing.assert_close(module(x, losses=x), 3 * x)
    inspect.signature(module).bind(x, losses=x)


@pytest.mark.parametrize("name", CASES)
def test_every_call_fits_its_signature(name: str) -> None:
    module, xs = compiled(name, "torch"), inputs_of(name)
    given = inspect.signature(module).bind(*xs, losses=False).arguments
    torch.testing.assert_close(module(**given), module(*xs))


def test_an_input_may_be_called_self() -> None:
    module, x = ta.compile(named({"self": "n f"}, "(2) * self[n f] -> n f")), torch.randn(3, 4)
    assert next(iter(inspect.signature(module).parameters)) == "self"
    torch.testing.assert_close(module(x), 2 * x)


def test_a_tensor_may_have_the_name_of_a_newer_method() -> None:
    module = ta.compile(named({"x": "n f"}, "x[n f] reset_parameters[f] -> n f", weights={"reset_parameters": "f"}))
    x = torch.randn(3, 4)
    torch.testing.assert_close(module(x), x * module.state_dict()["reset_parameters"])
    assert isinstance(copy.deepcopy(module).reset_parameters, nn.Parameter)


@pytest.mark.parametrize("name", ["mhsa", "mgk_em", "mhsa_core", "thsa_kron", "gfish"])
def test_first_values_are_drawn_again_as_at_construction(name: str) -> None:
    torch.manual_seed(3)
    module = ta.compile(name, dtype=torch.float64)
    first = {key: value.clone() for key, value in module.state_dict().items()}
    held = list(module.parameters())
    for value in module.state_dict().values():
        value.fill_(7)
    torch.manual_seed(3)
    module.reset_parameters()
    assert all(torch.equal(value, first[key]) for key, value in module.state_dict().items())
    assert all(one is other for one, other in zip(held, module.parameters(), strict=True))


def test_weights_of_the_meta_device_get_values() -> None:
    module = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}), device="meta").to_empty(device="cpu")
    torch.manual_seed(0)
    module.reset_parameters()
    torch.manual_seed(0)
    again = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}))
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(module(x), again(x))


def test_a_notebook_shows_picture_plan_and_cost() -> None:
    module = ta.compile("mhsa", causal=True, n=64)
    page = module._repr_html_()
    assert page.count("<svg") == 1
    assert "A: fused attention" in page
    assert "mhsa: n = 64, m = 64, batch 1, float32" in page


def test_without_graphviz_a_notebook_shows_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(source: str, form: str) -> bytes:
        raise ta.MissingPartError("no Graphviz")

    monkeypatch.setattr(render, "layout", absent)
    page = ta.compile("mhsa")._repr_html_()
    assert "<svg" not in page
    assert "A[h n m] = softmax over m" in page


def test_a_page_escapes_what_a_design_says() -> None:
    data = ta.load("mhsa").as_dict() | {"about": "Heads <script>alert(1)</script>"}
    assert "<script>" not in ta.compile(data)._repr_html_()


def test_copies_have_the_signature_and_the_plain_class() -> None:
    module = ta.compile("cross")
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert inspect.signature(other) == inspect.signature(module)
        assert isinstance(other, CompiledDesign)
        assert type(other).__qualname__ == "CompiledDesign"


class Scaled(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


def test_a_parametrised_weight_is_copied_with_its_class() -> None:
    module, x = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2})), torch.randn(2, 5, 16)
    plain = module(x)
    parametrize.register_parametrization(module, "Wo", Scaled())
    torch.testing.assert_close(module(x), 2 * plain)
    torch.testing.assert_close(copy.deepcopy(module)(x), 2 * plain)
    assert list(inspect.signature(module).parameters)[:2] == ["x", "memory"]


def test_torch_compile_counts_the_graphs_of_designs_apart() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 5, 16)
    for heads in (1, 2, 4, 8, 16):
        for name in ("mhsa", "band"):
            module = ta.compile(ta.load(name, legs={"f": 16, "h": heads}))
            torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(x), module(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(x)


def test_equal_layers_share_a_graph() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    x = torch.randn(2, 5, 16)
    for _ in range(4):
        block = Block()
        block.compile(fullgraph=True, backend=counter)
        torch.testing.assert_close(block(x), x + block.attention(x))
    assert counter.frame_count == 1


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_compiled_call_with_a_mask_is_traced_once(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    module, mask = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2})), torch.ones(5, 5).tril().to(dtype)
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for _ in range(2):
        compiled(torch.randn(2, 5, 16), mask=mask)
    assert counter.frame_count == 1
