"""One registration adds an implementation to everything that asks for kernels: plan, price, code, explain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.price import scene_of
from tensornet_attn.cost.work import KernelWork, saved
from tensornet_attn.emit.writer import Writer
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.kernels import KERNELS
from tensornet_attn.kernels.implementation import Context, Lowered, OfBoxes, kernel
from tensornet_attn.plan.implementations import another_implementation
from tensornet_attn.plan.make import make_plan
from tensornet_attn.rewrite.change import with_steps
from tests.agreement import modules

DESIGN: dict[str, Any] = {
    "tensornet": 1,
    "name": "gated",
    "legs": {"n": "query", "f": 8},
    "inputs": {"x": "n f"},
    "weights": {"W": "f o", "Wo": "o f"},
    "diagram": {
        "G": {"map": "silu", "of": {"rmsnorm": "o", "of": "x[n f] W[f o] -> n o"}},
        "y": "G[n o] Wo[o f] -> n f",
    },
    "output": "y",
}
DESIGN["legs"]["o"] = 12


class Normed(NamedTuple):
    """A map of normed rows."""

    graph: Graph
    norm: Step
    map: Step


class NormedWork(KernelWork):
    """The work of the steps inside; it saves a scale for each row."""

    @property
    def stored(self) -> dict[str, int]:
        return {f"{self.step.name}: scales": self.scene.elements(self.step, without=self.step.legs[-1])}


class NormedMaps(OfBoxes[Normed]):
    """Maps of rows that an rmsnorm without eps made, in one call."""

    name, kind, work = "normed maps", "normed_map", NormedWork

    def places(self, graph: Graph) -> list[str]:
        return [step.name for step in graph.steps if step.box is not None and step.box.function is not None]

    def form(self, graph: Graph, place: str) -> Normed | None:
        step = graph.step[place]
        norm = graph.step.get(step.op.uses[0].name)
        return Normed(graph, norm, step) if norm and norm.box and norm.box.kind == "rmsnorm" else None

    def unsupported(self, form: Normed, context: Context) -> tuple[str, ...]:
        last = form.norm.box is not None and form.norm.legs[-1] == form.norm.box.leg
        return () if last else (f"'{form.norm.name}' does not run along its last leg",)

    def lower(self, form: Normed, context: Context) -> Lowered:
        step = Step(form.map.name, kernel(self.kind, form.graph, (), (form.norm, form.map), form), form.map.legs)
        graph = with_steps(form.graph, {form.norm.name: [], form.map.name: [step]})
        return Lowered(graph, {form.map.name: f"{self.name}: the rows and their map in one call"})

    def emit(self, writer: Writer, step: Step) -> None:
        assert isinstance(step.form, Normed)
        norm = step.form.norm
        assert norm.box is not None
        writer.functions |= {"def normed(x, eps, f):\n    return f(nn.functional.rms_norm(x, x.shape[-1:], eps=eps))"}
        rows, eps = writer.value(norm.op.uses[0]).arranged(norm.legs).text, writer.number(norm.box.number("eps"))
        writer.named(step.name, f"normed({rows}, {eps}, nn.functional.silu)", step.legs)


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with another_implementation(NormedMaps()):
        yield
    assert "normed_map" not in KERNELS


def test_explain_has_the_kernel_or_why_there_is_none() -> None:
    assert "G: normed maps: the rows and their map in one call" in ta.explain(DESIGN, "torch")
    other = {"map": "silu", "of": {"rmsnorm": "n", "of": "x[n f] W[f o] -> n o"}}
    told = ta.explain(DESIGN | {"diagram": DESIGN["diagram"] | {"G": other}}, "torch")
    assert "not normed maps: 'G.of' does not run along its last leg" in told


def test_the_price_is_its_own() -> None:
    plan = make_plan(build(ta.load(DESIGN)))
    scene = scene_of(split_products(plan.schedule), plan.target.sizes(plan.graph), plan.target)
    assert saved(scene, scene.graph.step["G"])["G: scales"] == scene.batch * scene.sizes["n"]


def test_the_code_calls_it_and_agrees_with_the_reference() -> None:
    assert "normed(" in ta.emit_source(DESIGN)
    oracle, layer = modules(DESIGN, "torch")
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), oracle(x))


def test_its_kind_is_its_own() -> None:
    with (
        pytest.raises(InputError, match="there is already a kind of kernel 'normed_map'"),
        another_implementation(NormedMaps()),
    ):
        pass
