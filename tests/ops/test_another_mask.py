"""One registration adds a mask to everything that looks at masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.graph.model import Graph
from tensornet_attn.ops import MASKS, another_mask
from tensornet_attn.plan.decoding import decoding_state
from tensornet_attn.spec import json_schema
from tests.ops.another import EVERY, FIRST
from tests.random_call import F64, assert_same, results

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
        "A": {"softmax": "m", "scale": "d ** -0.5", "mask": "first(k)", "of": "Q[n h d] K[m h d] -> h n m"},
        "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
    },
    "output": "y",
}
CASES: dict[str, Any] = {
    "first(3)": lambda query, key: key < 3,
    "every(3)": lambda query, key: (query - key) % 3 == 0,
    "first(k), causal": lambda query, key: (key < 2) & (key <= query),
    "every(k), window(4, 0)": lambda query, key: ((query - key) % 2 == 0) & (key <= query) & (key >= query - 4),
}
N = 11


def design(masks: str, kind: str = "softmax", **more: Any) -> dict[str, Any]:
    """The design with other masks, written one after the other, in a box of another kind."""
    box: dict[str, Any] = {kind: "m", "mask": masks.replace(", ", ";").replace("4;", "4, ").split(";"), "of": "S"}
    if kind == "normalize":
        box["of"] = {"map": "exp", "of": "S"}
    settings = DESIGN["settings"] if "k" in masks.replace("first(3)", "") and "(k)" in masks else {}
    steps = DESIGN["diagram"] | {"S": "(d ** -0.5) * Q[n h d] K[m h d] -> h n m", "A": box}
    order = {name: steps[name] for name in ("Q", "K", "V", "S", "A", "y")}
    return DESIGN | {"diagram": order, "settings": settings} | more


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with another_mask(FIRST), another_mask(EVERY):
        yield
    assert not {"first", "every"} & {*MASKS}


def complaints(mask: str) -> list[str]:
    found = ta.check(design(mask))
    return [f"{problem.code}: {problem.message} {problem.hint}" for problem in found if problem.code != "unused"]


def test_the_checker_knows_them() -> None:
    assert ta.check(DESIGN) == []
    assert complaints("frist(2)") == ["unknown-mask: there is no mask 'frist'. did you mean 'first'?"]
    assert complaints("first") == ["arguments: 'first' takes 1 argument, 0 given. e.g. 'first(4)'."]
    assert complaints("first(0)") == ["number: 'first(0)' sees nothing: it counts no key. e.g. 'first(4)'."]
    assert complaints("every(0.5)") == ["number: 'every(0.5)' needs whole numbers below 2 ** 31. e.g. 'every(2)'."]


def test_editors_complete_them() -> None:
    assert {"first(4)", "every(2)", "causal"} <= {*json_schema()["$defs"]["Softmax"]["properties"]["mask"]["examples"]}


def test_the_text_form_is_read_back_and_equal_masks_have_one_hash() -> None:
    graph = ta.build(ta.Design(**DESIGN))
    assert "mask first(k)" in graph.to_text()
    assert Graph.from_text(graph.to_text()) == graph
    assert ta.build(ta.Design(**design("first(k)"))).hash == ta.build(ta.Design(**design("first(2)"))).hash
    assert ta.build(ta.Design(**design("first(3)"))).hash != ta.build(ta.Design(**design("every(3)"))).hash


def modules(source: dict[str, Any], backend: str = "torch", **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    pair = ta.reference(source, dtype=F64), ta.compile(source, backend, dtype=F64, **options)
    pair[1].load_state_dict(pair[0].state_dict())
    return pair


def plainly(module: Any, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """The softmax design with a boolean mask."""
    q, k, v = (torch.einsum("bnf,fhd->bhnd", x, getattr(module, name)) for name in ("Wq", "Wk", "Wv"))
    scores = (q @ k.mT / 3**0.5).masked_fill(~keep, -torch.inf)
    maps = scores.softmax(-1).nan_to_num(0)
    return torch.einsum("bhnm,bhmd,hdf->bnf", maps, v, module.Wo)


@pytest.mark.parametrize("masks", CASES)
def test_the_reference_sees_what_a_plain_mask_shows(masks: str) -> None:
    oracle, _ = modules(design(masks))
    place = torch.arange(N)
    x = torch.randn(2, N, 6, dtype=F64)
    torch.testing.assert_close(oracle(x), plainly(oracle, x, CASES[masks](place[:, None], place)))


@pytest.mark.parametrize("blockwise", [False, True])
@pytest.mark.parametrize("kind", ["softmax", "normalize", "keep"])
@pytest.mark.parametrize("masks", CASES)
def test_code_is_the_reference_in_values_and_gradients(masks: str, kind: str, blockwise: bool) -> None:
    source = design(masks, kind)
    if blockwise:  # scores of three factors are made for each block
        source["weights"] = source["weights"] | {"u": "h d"}
        source["diagram"]["S"] = "(d ** -0.5) * Q[n h d] K[m h d] u[h d] -> h n m"
        source["legs"] = source["legs"] | {"d": "head 3"}
        source["diagram"]["A"] = source["diagram"]["A"] | {"of": {"map": "tanh", "of": "S"}}
    oracle, module = modules(source, **({} if blockwise else {"n": 1, "m": 1}))
    assert ("blockwise" in module.explain()) == blockwise
    x = torch.randn(2, N, 6, dtype=F64)
    for options in ({}, {"mask": torch.rand(N, N) < 0.6}, {"key_mask": torch.rand(2, N) < 0.6}):
        assert_same(results(module, [x], options), results(oracle, [x], options))


def test_causality_is_what_their_areas_prove() -> None:
    for masks, backward in (("first(2), causal", True), ("every(2), window(4, 0)", True), ("every(2)", False)):
        module = ta.compile(design(masks), "torch", dtype=F64)
        if backward:
            module.new_cache()
        else:
            with pytest.raises(ta.InputError, match="in 'A' a query sees later keys"):
                module.new_cache()


@pytest.mark.parametrize("masks", ["first(k), causal", "every(k), window(4, 0)"])
def test_chunks_are_the_same_as_at_once(masks: str) -> None:
    _, module = modules(design(masks))
    x = torch.randn(2, N, 6, dtype=F64)
    for cuts in ([1] * N, [3, 1, 7]):
        cache = module.new_cache()
        with torch.no_grad():
            found = [module(part, cache=cache) for part in x.split(cuts, 1)]
            torch.testing.assert_close(torch.cat(found, 1), module(x))


def test_costs() -> None:
    near, far = (ta.build(ta.Design(**design(masks))) for masks in ("every(k), window(4, 0)", "first(k), causal"))
    assert decoding_state(near, 64) == 2 * 5 * 6  # keys and values of the window
    assert decoding_state(far, 64) == 2 * 64 * 6  # a place is a place of all keys
    assert (
        ta.cost(design("every(3)"), n=16).as_dict()["written"] == ta.cost(design("causal"), n=16).as_dict()["written"]
    )


def test_pictures() -> None:
    assert "first(k)" in ta.compiler.picture(DESIGN, "mmd").decode()


def test_it_is_in_kernels() -> None:
    source = ta.emit_source(design("first(3)"), backend="triton")
    assert "& (m[None, :] < 3)" in source
    assert "distance % 3 == 0" in ta.emit_source(design("every(3)"), backend="triton")
