"""Auxiliary losses in designs and graphs: short and long form, children, text, hash, causality, prices, pictures."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.draw import to_mermaid, to_text
from tensornet_attn.errors import DesignError
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Loss
from tensornet_attn.ir.arithmetic import Name, parse
from tensornet_attn.search.sketch import data_of, sketch_of
from tensornet_attn.spec.design import json_schema
from tests.losses import DESIGNS, EXPERTS
from tests.shipped import OWN_KEYS

TEXT = """\
loss balance = 1 / 100
loss z step Z = z
loss drift = -2
output y
"""


def child(**sections: Any) -> dict[str, Any]:
    return {"tensornet": 1, "name": "child", "extends": "moa_regularised"} | sections


def test_the_short_and_the_long_form() -> None:
    design = ta.load(EXPERTS)
    assert [(name, loss.step, loss.weight) for name, loss in design.losses.items()] == [
        ("balance", None, "1 / 100"),
        ("z", "Z", "z"),
        ("drift", None, -2),
    ]
    assert design.loss_weights == {"balance": 0.01, "z": 0.001, "drift": -2}
    long = EXPERTS.replace("balance: 1 / 100", "balance: {step: balance, weight: 0.01}")
    assert ta.load(long).hash == design.hash
    assert build(design).losses == (
        Loss("balance", "balance", parse("1 / 100")),
        Loss("z", "Z", Name("z")),
        Loss("drift", "drift", parse(-2)),
    )
    assert ta.load(EXPERTS, settings={"z": 0.5}).loss_weights["z"] == 0.5


def test_a_design_reads_back() -> None:
    for source, _ in DESIGNS.values():
        design = ta.load(source)
        again = ta.load(design.to_yaml())
        assert (again.as_dict(), again.hash) == (design.as_dict(), design.hash)
    assert "\nlosses:\n  balance: 1 / 100\n  z:\n    weight: z\n    step: Z\n" in ta.load(EXPERTS).to_yaml()


def test_a_design_built_in_python() -> None:
    design = ta.Design(
        tensornet=1,
        name="small",
        legs={"n": "query", "f": 4},
        inputs={"x": "n f"},
        weights={"W": "f"},
        diagram={"y": "x[n f] W[f] -> n f", "s": {"mean": "n", "of": "x[n f] W[f] -> n"}},
        losses={"s": 0.5, "again": {"step": "s", "weight": "1 / f"}},
        output="y",
    )
    assert ta.check(design) == []
    assert design.loss_weights == {"s": 0.5, "again": 0.25}
    with pytest.raises(DesignError) as raised:
        ta.Design(**design.as_dict() | {"losses": {"s": None}})
    assert str(raised.value) == (
        "small: losses.s: wrong-type: expected the weight of a loss, got nothing.\n"
        "  hint: e.g. 's: 0.01', or 's: {step: H, weight: 0.01}'."
    )


def test_a_child_has_its_parents_losses_replaces_and_removes_them() -> None:
    assert list(ta.load(child()).losses) == ["importance", "balance", "router_z"]
    gone = {"diagram": dict.fromkeys(("importance", "share", "load")), "settings": {"importance_weight": None}}
    fewer = ta.load(child(**gone, losses={"importance": None, "balance": "2 * balance_weight + 0.48"}))
    assert fewer.loss_weights == {"balance": 0.5, "router_z": 0.001}
    problems = ta.check(child(losses={"importance": None, "balnce": None}))
    assert [(problem.code, problem.hint) for problem in problems if problem.code == "nothing-to-remove"] == [
        ("nothing-to-remove", "did you mean 'balance'?")
    ]
    (gone,) = ta.check(child(diagram={"balance": None}))
    assert (gone.code, gone.message) == ("unknown-name", "there is no step 'balance'.")


def test_what_a_loss_alone_needs_is_not_unused() -> None:
    assert ta.check("moa_regularised") == []
    left = {problem.message for problem in ta.check(child(losses={"router_z": None}))}
    assert left == {"step 'router_z' reaches no output.", "setting 'z_weight' is never used."}


def test_a_loss_may_sum_over_later_keys() -> None:
    assert ta.check("moa_regularised") == []
    assert build(ta.load("moa_regularised"), causal=True).causal
    leak = ta.check(
        child(
            causal=True,
            diagram={"y": None, "late": "G[n e] A[e n m] V[m d] Wo[e d f] + balance[] -> n f"},
            output="late",
        )
    )
    assert {problem.code for problem in leak} == {"causal-leak"}


def test_the_text_of_a_graph() -> None:
    graph = build(ta.load(EXPERTS))
    assert graph.to_text().endswith(TEXT)


def test_losses_and_their_weights_are_in_the_hash_and_their_names_are_not() -> None:
    base = ta.load(EXPERTS).hash
    renamed = EXPERTS.replace("z: {step: Z, weight: z}", "router: {step: Z, weight: z}")
    turned = EXPERTS.replace(
        "  balance: 1 / 100\n  z: {step: Z, weight: z}\n", "  z: {step: Z, weight: z}\n  balance: 0.01\n"
    )
    assert ta.load(renamed).hash == ta.load(turned).hash == base
    others = [
        EXPERTS.replace("1 / 100", "0.02"),
        EXPERTS.replace("{step: Z, weight: z}", "{step: Z, weight: 2 * z}"),
        EXPERTS.replace("  balance: 1 / 100\n", "  balance: 1 / 100\n  twice: {step: balance, weight: 0.5}\n"),
    ]
    assert len({base, *(ta.load(text).hash for text in others)}) == 4
    assert ta.load("moa_regularised").hash != ta.load("moa").hash


def test_designs_without_losses_keep_their_text_and_hash() -> None:
    graph = build(ta.load(OWN_KEYS))
    assert graph.losses == ()
    assert "loss" not in graph.to_text()
    assert graph.hash == "cd5d5bde3ec20d47ec1d5c1515d3dc94a4677bb8f46ef1142e3039cddc3bc7d5"


def test_the_cost_marks_what_training_alone_computes() -> None:
    report = ta.cost(EXPERTS, n=8)
    assert report.written is not None
    training = [step.step for step in report.written.steps if step.training]
    assert training == [
        "p", "router", "chosen", "frequency", "balance", "lse.of", "lse", "Z", "surprise", "drift"
    ]  # fmt: skip
    assert report.written.evaluation.macs == report.written.macs - 2 * 4
    text = report.to_text()
    assert "  balance (in training) " in text
    assert "\n  in evaluation " in text
    plain = ta.cost("mhsa", n=8)
    assert plain.written.evaluation.macs == plain.written.macs
    assert "in evaluation" not in plain.to_text()
    found = report.as_dict()["written"]
    assert found["steps"][-1]["training"] is True
    assert found["evaluation"]["macs"] == report.written.evaluation.macs


def test_pictures_mark_losses() -> None:
    graph = build(ta.load(EXPERTS))
    assert (
        "usage becomes router, averaged over the batch, after each training call\n"
        "loss balance averaged over the batch, times 1 / 100 in training\n"
        "loss z, which is Z, averaged over the batch, times z in training\n"
        "loss drift averaged over the batch, times -2 in training\n"
        "output y\n"
    ) in to_text(graph)
    text = to_mermaid(graph)
    assert '["balance[], loss, times 1 / 100"]' in text
    assert '["Z[], loss z, times z"]' in text
    assert '["y[n f]"]' in text


def test_a_sketch_keeps_losses() -> None:
    sketch = sketch_of(ta.load(EXPERTS))
    assert sketch.losses == {"balance": ("balance", "1 / 100"), "z": ("Z", "z"), "drift": ("drift", -2)}
    assert ta.load(data_of(sketch)).hash == ta.load(EXPERTS).hash
    renamed = sketch.copy()
    renamed.rename({"Z": "far"})
    assert renamed.losses["z"] == ("far", "z")
    assert ta.load(data_of(renamed)).hash == ta.load(EXPERTS).hash


def test_the_schema_takes_both_forms() -> None:
    given = json_schema()["properties"]["losses"]
    kinds = given["additionalProperties"]["anyOf"]
    assert {"type": "null"} in kinds
    assert any("number" in str(kind) for kind in kinds)
