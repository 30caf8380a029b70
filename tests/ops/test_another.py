"""One registration adds a map or a box to everything that looks at operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.convert.values import Weights, fill, lifted
from tensornet_attn.ops import MAPS, OPS, Operation, another_map, another_operation
from tensornet_attn.spec import json_schema
from tensornet_attn.special import embed
from tests.agreement import modules
from tests.ops.another import CUMMAX, LOGSIGMOID, TIMES
from tests.random_call import same_results

F64 = torch.float64
DESIGN: dict[str, Any] = {
    "tensornet": 1,
    "name": "running",
    "legs": {"n": "query", "m": "key", "f": 6, "h": "head 2", "d": 3},
    "inputs": {"x": "n f", "memory": {"legs": "m f", "default": "x"}},
    "weights": {"Wq": "f h d", "Wk": "f h d", "Wv": "f h d", "Wo": "h d f"},
    "diagram": {
        "Q": "x[n f] Wq[f h d] -> n h d",
        "K": "memory[m f] Wk[f h d] -> m h d",
        "V": "memory[m f] Wv[f h d] -> m h d",
        "A": {"cummax": "m", "of": {"map": "log_of_sigmoid", "of": "Q[n h d] K[m h d] -> h n m"}},
        "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
    },
    "output": "y",
}
FORMS = ("plain", "causal", "mask", "heads", "float", "keys")


def step(**box: Any) -> dict[str, Any]:
    """The design with another box in the place of A."""
    return DESIGN | {"diagram": DESIGN["diagram"] | {"A": box}}


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with another_map(LOGSIGMOID), another_operation(CUMMAX):
        yield
    assert "cummax" not in OPS
    assert "log_of_sigmoid" not in MAPS


def complaints(design: dict[str, Any]) -> list[str]:
    return [f"{problem.code}: {problem.message} {problem.hint}" for problem in ta.check(design)]


def test_the_checker_knows_both() -> None:
    assert ta.check(DESIGN) == []
    scores = "Q[n h d] K[m h d] -> h n m"
    assert complaints(step(cumax="m", of=scores)) == ["unknown-box: there is no box 'cumax'. did you mean 'cummax'?"]
    (wrong,) = complaints(step(cummax="f", of=scores))
    assert wrong == "box-leg: the operand of this box has no leg 'f'; its legs are h n m. name one of its legs."
    (wrong,) = complaints(step(cummax="m", off=scores, of=scores))
    assert wrong == "unknown-key: there is no key 'off' here. did you mean 'of'?"
    (wrong,) = complaints(step(cummax="h", mask="causal", of=scores))
    assert wrong.startswith("mask-place: masks apply along the key leg, but this box runs along 'h'")
    (wrong,) = complaints(step(map="log_of_sigmoyd", of=scores))
    assert wrong == "unknown-map: there is no map 'log_of_sigmoyd'. did you mean 'log_of_sigmoid'?"
    (wrong,) = complaints(step(map="log_of_sigmoid(2)", of=scores))
    assert wrong == "arguments: 'log_of_sigmoid' takes no arguments, got 1. e.g. 'log_of_sigmoid'."


def test_the_schema_has_the_box() -> None:
    schema = json_schema()
    assert schema["$defs"]["CumMaxModel"]["required"] == ["cummax", "of"]
    assert "CumMaxModel" in str(schema["properties"]["diagram"])


def test_it_is_unknown_again_afterwards() -> None:
    with another_operation(type("CumMin", (type(CUMMAX),), {"kind": "cummin", "model": None})()):
        assert "cummin" in OPS
    assert "cummin" not in OPS


def test_a_class_with_the_model_of_another_operation_leaves_it_as_it_is() -> None:
    model = type(CUMMAX).model
    for others in ({"kind": "cummin"}, {}):  # another kind, or a base of several
        type("Other", (Operation,), {"model": model, **others})
    with another_operation(TIMES):  # rebuilds the language
        assert ta.check(DESIGN) == []


def test_names_that_are_taken_are_refused_and_stay() -> None:
    taken = {"map 'relu'": another_map(replace(LOGSIGMOID, name="relu")), "box 'cummax'": another_operation(CUMMAX)}
    for noun, more in taken.items():
        with pytest.raises(ta.InputError, match=rf"there is already a {noun}; choose another name\."), more:
            pass
    assert "relu" in MAPS
    assert ta.check(DESIGN) == []


def test_the_text_form_names_it() -> None:
    graph = ta.build(ta.Design(**DESIGN))
    assert "A[h n m] = cummax(A.of[h n m]; over m)" in graph.to_text()


def call(form: str) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    inputs = [torch.randn(2, 5, 6, dtype=F64), torch.randn(2, 5 if form == "causal" else 7, 6, dtype=F64)]
    keys = inputs[1].shape[1]
    masks = {
        "mask": {"mask": torch.rand(5, keys) < 0.5},
        "heads": {"mask": torch.rand(2, 2, 5, keys) < 0.5},
        "float": {"mask": torch.randn(5, keys, dtype=F64)},
        "keys": {"key_mask": torch.rand(2, keys) < 0.5},
    }
    return inputs, masks.get(form, {})


@pytest.mark.parametrize("blockwise", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_code_is_the_reference_in_values_and_gradients(form: str, blockwise: bool) -> None:
    oracle, module = modules(DESIGN, causal=form == "causal", **({} if blockwise else {"n": 1, "m": 1}))
    assert ("blockwise" in module.explain()) == blockwise
    inputs, options = call(form)
    same_results(module, oracle, inputs, options)


def test_in_blocks_every_operand_has_its_gradient() -> None:
    times = {"times": "m", "of": "Q[n h d] K[m h d] -> h n m", "by": "Q[n h d] V[m h d] -> h n m"}
    with another_operation(TIMES):
        design = step(softmax="m", of={"map": "tanh", "of": times})
        oracle, module = modules(design, linear_memory=True)
        assert "blockwise" in module.explain()
        inputs, options = call("mask")
        same_results(module, oracle, inputs, options)


def test_the_oracle_is_right() -> None:
    graph = ta.build(ta.Design(**DESIGN))
    inputs, options = call("mask")
    oracle = ta.reference(DESIGN, False, dtype=F64)
    weights = dict(oracle.named_parameters())
    q, k, v = (torch.einsum("bnf,fhd->bhnd", inputs[i], weights[w]) for i, w in ((0, "Wq"), (1, "Wk"), (1, "Wv")))
    scores = torch.nn.functional.logsigmoid(q @ k.mT)
    maps = torch.zeros_like(scores)
    for n in range(5):
        largest = torch.full_like(scores[:, :, 0, 0], -torch.inf)
        for m in range(7):
            if options["mask"][n, m]:
                largest = torch.maximum(largest, scores[:, :, n, m])
                maps[:, :, n, m] = largest
    want = torch.einsum("bhnm,bhmd,hdf->bnf", maps, v, weights["Wo"])
    torch.testing.assert_close(oracle(*inputs, **options), want)
    assert graph.masked(graph.step["A"])


def test_causality() -> None:
    assert ta.check(DESIGN | {"causal": True}) == []
    (leak,) = ta.check(step(cummax="n", of={"keep": "m", "of": "Q[n h d] K[m h d] -> h n m"}) | {"causal": True})
    assert leak.code == "causal-leak"
    assert "step 'A' runs along the query leg 'n'" in leak.message


def test_costs() -> None:
    scores = "Q[n h d] K[m h d] -> h n m"
    with_both, without = (ta.cost(source, n=16).as_dict()["written"] for source in (DESIGN, step(keep="m", of=scores)))
    numbers = 2 * 16 * 16
    assert with_both["total"]["elementwise"] - without["total"]["elementwise"] == 2 * numbers  # one for each
    assert with_both["total"]["macs"] == without["total"]["macs"]
    assert with_both["total"]["saved_floats"] - without["total"]["saved_floats"] == 2 * numbers  # what each is made of


def test_pictures() -> None:
    text = ta.compiler.picture(DESIGN, "mmd").decode()
    assert "cummax over m" in text
    assert "log_of_sigmoid" in text
    assert "cummax over m" in ta.compiler.picture(DESIGN, "svg").decode()


def test_tiles_take_the_map_and_say_why_they_do_not_take_the_box() -> None:
    told = ta.explain(DESIGN, backend="triton")
    assert "kernels have no tiles for 'cummax', in 'A'" in told
    maps = step(softmax="m", of={"map": "log_of_sigmoid", "of": "Q[n h d] K[m h d] -> h n m"})
    assert "Triton kernels" in ta.explain(maps, backend="triton")
    assert "tl.minimum(" in ta.emit_source(maps, backend="triton")


def test_special_cases(tmp_path: Path) -> None:
    (tmp_path / "running.yaml").write_text(ta.Design(**DESIGN).to_yaml())
    general = DESIGN | {
        "name": "mixed",
        "legs": DESIGN["legs"] | {"g": "head 2"},
        "weights": DESIGN["weights"] | {"C": "h g"},
        "diagram": DESIGN["diagram"] | {"y": "C[h g] A[h n m] V[m g d] Wo[g d f] -> n f"},
        "contains": {"./running.yaml": {"legs": {"g": "h"}, "weights": {"C": "eye"}}},
    }
    path = tmp_path / "mixed.yaml"
    path.write_text(ta.Design(**general).to_yaml())
    assert ta.check(path) == []
    small = ta.reference(DESIGN, dtype=F64)
    made = embed(ta.load(path), "./running.yaml", ta.Design(**DESIGN))
    big = ta.reference(made.general, dtype=F64)
    fill(big, lifted(made, Weights(dict(small.state_dict()), {}, {})).values)
    inputs, _ = call("plain")
    torch.testing.assert_close(big(*inputs), small(*inputs))
