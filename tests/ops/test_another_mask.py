"""One registration adds a mask to everything that looks at masks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.ops import MASKS, Mask, another_mask
from tensornet_attn.plan.decoding import decoding_state
from tensornet_attn.spec import json_schema
from tests.agreement import in_chunks, modules
from tests.ops.another import LATE
from tests.random_call import F64, same_results

DESIGN: dict[str, Any] = {
    "tensornet": 1,
    "name": "seen",
    "legs": {"n": "query", "m": "key", "f": 6, "h": "head 2", "d": 3},
    "settings": {"k": 2},
    "inputs": {"x": "n f"},
    "weights": {"Wq": "f h d", "Wk": "f h d", "Wv": "f h d", "Wo": "h d f"},
    "diagram": {
        "Q": "x[n f] Wq[f h d] -> n h d",
        "K": "x[m f] Wk[f h d] -> m h d",
        "V": "x[m f] Wv[f h d] -> m h d",
        "A": {"softmax": "m", "scale": "d ** -0.5", "mask": "late(k)", "of": "Q[n h d] K[m h d] -> h n m"},
        "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
    },
    "output": "y",
}
CASES: dict[tuple[str, ...], Any] = {
    ("late(3)",): lambda query, key: (query >= 3) & (key <= query),
    ("late(3, -2)",): lambda query, key: (query >= 3) & (key <= query + 2),
    ("late(k, 1)", "prefix(3)"): lambda query, key: (query >= 2) & (key < query) & (key < 3),
    ("late(k)", "window(4, 0)"): lambda query, key: (query >= 2) & (key <= query) & (key >= query - 4),
    ("causal and not late(3, 1)",): lambda query, key: (key <= query) & ((query < 3) | (key == query)),
}
N = 11


def design(*masks: str, kind: str = "softmax") -> dict[str, Any]:
    """The design with other masks in a box of another kind."""
    box: dict[str, Any] = {kind: "m", "mask": [*masks], "of": "S"}
    if kind == "normalize":
        box["of"] = {"map": "exp", "of": "S"}
    settings = DESIGN["settings"] if "(k" in "".join(masks) else {}
    steps = DESIGN["diagram"] | {"S": "(d ** -0.5) * Q[n h d] K[m h d] -> h n m", "A": box}
    order = {name: steps[name] for name in ("Q", "K", "V", "S", "A", "y")}
    return DESIGN | {"diagram": order, "settings": settings}


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with another_mask(LATE):
        yield
    assert "late" not in MASKS


def complaints(mask: str) -> list[str]:
    found = ta.check(design(mask))
    return [f"{problem.code}: {problem.message} {problem.hint}" for problem in found if problem.code != "unused"]


def test_the_checker_knows_them() -> None:
    assert ta.check(DESIGN) == []
    assert complaints("lat(2)") == ["unknown-mask: there is no mask 'lat'. did you mean 'late'?"]
    assert complaints("late") == ["arguments: 'late' takes 1 or 2 arguments, got 0. e.g. 'late(4, 1)'."]
    wrong = "number: 'late(-1)' shows all: its first argument must be at least 0. e.g. 'late(4, 1)'."
    assert complaints("late(-1)") == [wrong]
    assert complaints("late(0.5)") == ["number: 'late(0.5)' needs whole numbers below 2 ** 31. e.g. 'late(4, 1)'."]


def test_a_name_that_is_taken_is_refused_and_stays() -> None:
    for name in ("band", "late"):
        wrong = f"there is already a mask '{name}'; choose another name."
        with pytest.raises(ta.InputError, match=re.escape(wrong)), another_mask(replace(LATE, name=name)):
            pass
        assert name in MASKS


def test_another_mask_of_the_same_name_has_code_of_its_own() -> None:
    x = torch.randn(1, N, 6, dtype=F64)
    other = Mask("soon", lambda query, key, least: query < least, "{query} < {a}", usage="soon(4)", arguments=1)
    turned = replace(other, reference=lambda query, key, least: query >= least, sees="{query} >= {a}")
    for row in (other, turned, other):
        with another_mask(row):
            oracle, module = modules(design("soon(3)"))
            torch.testing.assert_close(module(x), oracle(x))


def test_editors_complete_them() -> None:
    assert {"late(4, 1)", "causal"} <= {*json_schema()["$defs"]["Softmax"]["properties"]["mask"]["examples"]}


def test_the_text_form_names_it_and_equal_masks_have_one_hash() -> None:
    graph = ta.build(ta.Design(**DESIGN))
    assert "mask late(k)" in graph.to_text()
    assert ta.build(ta.Design(**design("late(k)"))).hash == ta.build(ta.Design(**design("late(2)"))).hash
    assert ta.build(ta.Design(**design("late(3)"))).hash != ta.build(ta.Design(**design("prefix(3)"))).hash


def plainly(module: Any, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """The softmax design with a boolean mask."""
    q, k, v = (torch.einsum("bnf,fhd->bhnd", x, getattr(module, name)) for name in ("Wq", "Wk", "Wv"))
    scores = (q @ k.mT / 3**0.5).masked_fill(~keep, -torch.inf)
    maps = scores.softmax(-1).nan_to_num(0)
    return torch.einsum("bhnm,bhmd,hdf->bnf", maps, v, module.Wo)


@pytest.mark.parametrize("masks", CASES)
def test_the_reference_sees_what_a_plain_mask_shows(masks: tuple[str, ...]) -> None:
    oracle, _ = modules(design(*masks))
    place = torch.arange(N)
    x = torch.randn(2, N, 6, dtype=F64)
    torch.testing.assert_close(oracle(x), plainly(oracle, x, CASES[masks](place[:, None], place)))


@pytest.mark.parametrize("blockwise", [False, True])
@pytest.mark.parametrize("kind", ["softmax", "normalize", "keep"])
@pytest.mark.parametrize("masks", CASES)
def test_code_is_the_reference_in_values_and_gradients(masks: tuple[str, ...], kind: str, blockwise: bool) -> None:
    source = design(*masks, kind=kind)
    if blockwise:  # scores of three factors are made for each block
        source["weights"] = source["weights"] | {"u": "h d"}
        source["diagram"]["S"] = "(d ** -0.5) * Q[n h d] K[m h d] u[h d] -> h n m"
        source["legs"] = source["legs"] | {"d": "head 3"}
        source["diagram"]["A"] = source["diagram"]["A"] | {"of": {"map": "tanh", "of": "S"}}
    oracle, module = modules(source, **({} if blockwise else {"n": 1, "m": 1}))
    assert ("blockwise" in module.explain()) == blockwise
    x = torch.randn(2, N, 6, dtype=F64)
    for options in ({}, {"mask": torch.rand(N, N) < 0.6}, {"key_mask": torch.rand(2, N) < 0.6}):
        same_results(module, oracle, [x], options)


def test_causality_is_what_their_areas_prove() -> None:
    for masks, backward in ((("late(2)",), True), (("late(2, -1)", "window(4, 0)"), True), (("late(2, -1)",), False)):
        module = ta.compile(design(*masks), "torch", dtype=F64)
        if backward:
            module.new_cache()
        else:
            with pytest.raises(ta.InputError, match="in 'A' a query sees later keys"):
                module.new_cache()


@pytest.mark.parametrize("masks", [("late(k)", "causal"), ("late(k, 1)", "window(4, 0)")])
def test_chunks_are_the_same_as_at_once(masks: tuple[str, ...]) -> None:
    _, module = modules(design(*masks))
    x = torch.randn(2, N, 6, dtype=F64)
    for cuts in ([1] * N, [3, 1, 7]):
        torch.testing.assert_close(in_chunks(module, x, cuts), module(x))


def test_costs() -> None:
    assert decoding_state(ta.build(ta.Design(**design("late(k)"))), 64) == 2 * 64 * 6  # a place is a place of all keys
    late, causal = (ta.cost(design(mask), n=16).as_dict()["written"] for mask in ("late(3)", "causal"))
    assert late == causal


def test_pictures() -> None:
    assert "late(k)" in ta.compiler.picture(DESIGN, "mmd").decode()


def test_it_is_in_kernels() -> None:
    source = ta.emit_source(design("late(3)"), backend="triton")
    assert ">= 3) & (" in source
