"""The table of implementations: a row of its own is asked, chosen and refused like any other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.target import Target
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph import build
from tensornet_attn.graph.attention import attentions
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.kernels import KERNELS
from tensornet_attn.kernels.attention import FUSED, Scored
from tensornet_attn.kernels.implementation import Context, FormCost, Lowered, OfBoxes
from tensornet_attn.plan import make
from tensornet_attn.plan.implementations import TORCH
from tensornet_attn.plan.make import make_plan


@dataclass
class Named(OfBoxes[Scored]):
    """Fused attention for maps of one name, at a price for a key."""

    box: str
    price: float
    name = "named attention"

    def places(self, graph: Graph) -> list[str]:
        return list(attentions(graph))

    def form(self, graph: Graph, place: str) -> Scored | None:
        return FUSED.form(graph, place)

    def unsupported(self, form: Scored, context: Context) -> tuple[str, ...]:
        return () if form.box == self.box else (f"it is called '{form.box}'",)

    def cost(self, form: Scored, context: Context) -> FormCost:
        keys = context.sizes["m"]
        return FormCost(self.price * keys, 100 * keys, "it would take")

    def emit(self, writer: Writer, step: Step) -> None:
        FUSED.emit(writer, step)

    def lower(self, form: Scored, context: Context) -> Lowered:
        made = FUSED.lower(form, context)
        return replace(made, chosen=dict.fromkeys(made.chosen, self.name))


def explained(monkeypatch: pytest.MonkeyPatch, row: Named) -> str:
    monkeypatch.setattr(make, "TORCH", replace(TORCH, implementations=(row, *TORCH.rows)))
    return make_plan(build(ta.load("mhsa")), target=Target(n=10)).explain()


def test_a_row_that_pays_is_taken_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\n  A: named attention\n    predicted: 10 seconds instead of 1,000 seconds\n" in explained(
        monkeypatch, Named("A", 1)
    )


def test_a_row_that_does_not_pay_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    text = explained(monkeypatch, Named("A", 200))
    assert "\n  A: fused attention: " in text
    assert "\n    not named attention: it would take 2,000 seconds instead of 1,000 seconds\n" in text


def test_a_row_that_cannot_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    text = explained(monkeypatch, Named("B", 1))
    assert "\n  A: fused attention: " in text
    assert "\n    not named attention: it is called 'A'\n" in text


@pytest.mark.parametrize("name", ta.list_designs())
def test_every_kernel_is_of_a_row(name: str) -> None:
    """But for features side by side, which are part of the attention that reads them."""
    kinds = {step.kernel.kind for step in make_plan(build(ta.load(name))).schedule.steps if step.kernel}
    assert kinds <= KERNELS.keys()


def test_what_was_priced_is_what_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absorption plans each candidate once, and the plan is that of the one it chose."""
    seen = list[Graph]()
    implemented = make._implemented
    monkeypatch.setattr(make, "_implemented", lambda graph, context: seen.append(graph) or implemented(graph, context))
    module = ta.compile("mla", "torch", workload="decoding", dtype=torch.float64)
    assert any(region.chosen.startswith("absorbed weights") for region in module.plan.regions)
    assert len(seen) == len({*seen}) > 1
