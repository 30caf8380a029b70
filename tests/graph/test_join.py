"""Legs taken apart and joined in uses and results, as einops has it, and boxes over several legs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tensornet_attn as ta
from tests.agreement import in_chunks, modules
from tests.random_call import F64, same_results

LEGS = {"n": "query", "m": "key", "f": 12, "g": "f", "h": "head 3", "d": "f / h"}
JOINED: dict[str, Any] = {
    "tensornet": 1,
    "name": "joined",
    "legs": LEGS,
    "inputs": {"x": "n f"},
    "weights": {"Wq": "f h d", "Wk": "f g", "Wo": "f g"},
    "diagram": {
        "Q": "x[n f] Wq[f h d] -> n h d",
        "K": "x[m f] Wk[f (h d)] -> m h d",
        "V": "x[m (d h)]",
        "A": {"softmax": "m", "scale": "d ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"},
        "o": "A[h n m] V[m d h] -> n (h d)",
        "y": "o[n f] Wo[f g] -> n g",
    },
    "output": "y",
}
OPTIONS = ({}, {"n": 1024, "linear_memory": True}, {"workload": "decoding"})


def several(box: dict[str, Any], reads: str = "A[h n m]", **more: Any) -> dict[str, Any]:
    """Attention with another box in the place of Q, or of the map where it has scores."""
    steps = {
        "Q": "x[n f] Wq[f h d] -> n h d",
        "K": "x[m f] Wk[f h d] -> m h d",
        "V": "x[m f] Wv[f h d] -> m h d",
        "A": {"softmax": "m", "scale": "d ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"},
        "y": f"{reads} V[m h d] Wo[h d f] -> n f",
    }
    name = "A" if "softmax" in box and "m" in box["softmax"] else "Q"
    of = "Q[n h d] K[m h d] -> h n m" if name == "A" else "x[n f] Wq[f h d] -> n h d"
    legs = {name: size for name, size in LEGS.items() if name != "g"}
    weights = {"Wq": "f h d", "Wk": "f h d", "Wv": "f h d", "Wo": "h d f"}
    base = {key: JOINED[key] for key in ("tensornet", "name", "inputs", "output")}
    return base | {"legs": legs, "weights": weights, "diagram": steps | {name: {**box, "of": of}}} | more


def test_as_plain_pytorch_has_it() -> None:
    layer, x = ta.reference(JOINED, dtype=F64), torch.randn(2, 7, 12, dtype=F64)
    q = torch.einsum("bnf,fhd->bhnd", x, layer.Wq)
    k = (x @ layer.Wk).unflatten(-1, (3, 4)).transpose(1, 2)
    v = x.unflatten(-1, (4, 3)).permute(0, 3, 1, 2)
    out = (q @ k.mT / 2).softmax(-1) @ v
    torch.testing.assert_close(layer(x), out.transpose(1, 2).flatten(-2) @ layer.Wo)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_values_and_gradients(options: dict[str, Any], causal: bool) -> None:
    oracle, layer = modules(JOINED | {"causal": causal}, **options)
    x = [torch.randn(2, 9, 12, dtype=F64)]
    same_results(layer, oracle, x)


def test_chunks_are_the_same_as_at_once() -> None:
    oracle, layer = modules(JOINED | {"causal": True})
    x = torch.randn(2, 13, 12, dtype=F64)
    torch.testing.assert_close(in_chunks(layer.eval(), x, [5, 1, 7]), oracle(x))


def test_a_weight_begins_as_without_joining() -> None:
    """Fan-in and fan-out are those of the legs that are summed and left."""
    apart = JOINED | {"diagram": JOINED["diagram"] | {"K": "x[m f] Wk[f (h d)] -> m h d"}}
    assert ta.compile(apart).Wk.abs().max() <= (6 / 24) ** 0.5


def test_it_is_a_view() -> None:
    graph = ta.build(ta.load(JOINED))
    other = ta.build(
        ta.load(JOINED | {"diagram": JOINED["diagram"] | {"V": "x[m (h d)]", "o": "A[h n m] V[m h d] -> n (h d)"}})
    )
    assert graph.hash != other.hash
    source = ta.compile(JOINED).source
    assert "V_x = x_hidden.unflatten(-1, (self.Wq.shape[2], self.Wq.shape[1]))  # ... m d h" in source
    assert ".flatten(-2)  # ... n h_d" in source


NORMS: dict[str, Any] = {
    "rmsnorm": lambda q: F.rms_norm(q, (3, 4), eps=1e-5),
    "layernorm": lambda q: F.layer_norm(q, (3, 4)),
    "l1norm": lambda q: q / q.abs().sum((-1, -2), keepdim=True),
    "l2norm": lambda q: q / q.flatten(-2).norm(dim=-1)[..., None, None],
    "softmax": lambda q: q.flatten(-2).softmax(-1).unflatten(-1, (3, 4)),
}


def attended(layer: Any, x: Tensor, q: Tensor) -> Tensor:
    k, v = (torch.einsum("bnf,fhd->bnhd", x, weight) for weight in (layer.Wk, layer.Wv))
    weights = (torch.einsum("bnhd,bmhd->bhnm", q, k) / 2).softmax(-1)
    return torch.einsum("bhnm,bmhd,hdf->bnf", weights, v, layer.Wo)


@pytest.mark.parametrize("legs", [["h", "d"], ["d", "h"]])
@pytest.mark.parametrize("name", NORMS)
def test_norms_over_several_legs(name: str, legs: list[str]) -> None:
    oracle, layer = modules(several({name: legs}))
    x = torch.randn(2, 7, 12, dtype=F64)
    q = NORMS[name](torch.einsum("bnf,fhd->bnhd", x, oracle.Wq))
    torch.testing.assert_close(oracle(x), attended(oracle, x, q))
    same_results(layer, oracle, [x])


def test_topk_over_several_legs() -> None:
    oracle, layer = modules(several({"topk": ["h", "d"], "k": 5}))
    x = torch.randn(2, 7, 12, dtype=F64)
    q = torch.einsum("bnf,fhd->bnhd", x, oracle.Wq)
    least = q.flatten(-2).topk(5, -1).values[..., -1, None, None]
    torch.testing.assert_close(oracle(x), attended(oracle, x, torch.where(q >= least, q, 0)))
    same_results(layer, oracle, [x])


def test_groupnorm() -> None:
    oracle, layer = modules(several({"groupnorm": "d", "groups": 2}))
    x = torch.randn(2, 7, 12, dtype=F64)
    q = torch.einsum("bnf,fhd->bnhd", x, oracle.Wq)
    q = F.group_norm(q.flatten(0, 2), 2).view_as(q)
    torch.testing.assert_close(oracle(x), attended(oracle, x, q))
    same_results(layer, oracle, [x])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("more", [{}, {"mask": "causal", "sink": 1}, {"sink": "Wb[]"}], ids=str)
def test_softmax_over_keys_and_heads(more: dict[str, Any], options: dict[str, Any]) -> None:
    source = several({"softmax": ["h", "m"], "scale": "d ** -0.5", **more})
    source["weights"] |= {"Wb": {"legs": [], "init": "ones"}} if more.get("sink") == "Wb[]" else {}
    oracle, layer = modules(source, **options)
    x = torch.randn(2, 7, 12, dtype=F64)
    q, k, v = (torch.einsum("bnf,fhd->bnhd", x, weight) for weight in (oracle.Wq, oracle.Wk, oracle.Wv))
    scores = torch.einsum("bnhd,bmhd->bnhm", q, k) / 2
    if "mask" in more:
        scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1)[:, None], -torch.inf)
    scores = scores.flatten(-2)
    if "sink" in more:
        scores = F.pad(scores, (0, 1), value=1.0)
    weights = scores.softmax(-1)[..., :21].unflatten(-1, (3, 7))
    torch.testing.assert_close(oracle(x), torch.einsum("bnhm,bmhd,hdf->bnf", weights, v, oracle.Wo))
    keys = {"key_mask": torch.rand(2, 7, generator=torch.Generator().manual_seed(0)) < 0.7}
    for call in ({}, keys):
        same_results(layer, oracle, [x], call)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "logsumexp"])
def test_reductions_over_several_legs(name: str) -> None:
    source = several({name: ["h", "d"]})
    source["diagram"] = {"Q": source["diagram"]["Q"], "y": "Q[n] x[n f] -> n f"}
    source |= {"weights": {"Wq": "f h d"}, "legs": {leg: size for leg, size in source["legs"].items() if leg != "m"}}
    oracle, layer = modules(source)
    x = torch.randn(2, 7, 12, dtype=F64)
    q = torch.einsum("bnf,fhd->bnhd", x, oracle.Wq)
    wanted = q.amax((-1, -2)) if name == "max" else getattr(q, name)((-1, -2))
    torch.testing.assert_close(oracle(x), wanted[..., None] * x)
    same_results(layer, oracle, [x])


@pytest.mark.parametrize("name", ["sum", "mean", "max", "logsumexp"])
def test_masks_act_in_reductions_over_queries_and_keys(name: str) -> None:
    """Keys are reduced before queries, in whatever order the file names them."""
    source = several({"rmsnorm": "d"}, causal=True, losses={"s": {"step": "s", "weight": 1}})
    step = {name: ["n", "h", "m"], "of": "Q[n h d] K[m h d] -> h n m"}
    apart = {name: "n", "of": {name: "m", "of": {name: "h", "of": step["of"]}}}
    x, mask = torch.randn(2, 7, 12, dtype=F64), torch.rand(7, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    oracle = ta.reference(source | {"diagram": source["diagram"] | {"s": apart}}, dtype=F64)
    for make in (ta.reference, ta.compile):
        layer = make(source | {"diagram": source["diagram"] | {"s": step}}, dtype=F64)
        layer.load_state_dict(oracle.state_dict())
        for call in ({}, {"mask": mask}):
            found, wanted = (one(x, **call, losses=True)[1]["s"] for one in (layer, oracle))
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (
            {"softmax": ["n", "m"]},
            "box-leg: 'n' is the query leg; over keys, a softmax has a row for each query, in which masks act. "
            "e.g. 'softmax: m'; along the queries runs a box of its own, 'softmax: n'.",
        ),
        (
            {"softmax": ["m", "h", "n"]},
            "box-leg: 'n' is the query leg; over keys, a softmax has a row for each query, in which masks act. "
            "e.g. 'softmax: [m, h]'; along the queries runs a box of its own, 'softmax: n'.",
        ),
        (
            {"softmax": ["n", "h"]},
            "run-time-leg: leg 'n' is sized at run time and cannot be joined. use legs with sizes; a softmax may also "
            "have the key leg.",
        ),
        (
            {"topk": ["h", "m"], "k": 2},
            "run-time-leg: leg 'm' is sized at run time and cannot be joined. use legs with sizes.",
        ),
    ],
    ids=str,
)
def test_sequence_legs_among_several(box: dict[str, Any], message: str) -> None:
    source = several({"softmax": "m"})
    source["diagram"]["A"] = box | {"of": "Q[n h d] K[m h d] -> h n m"}
    assert message in [f"{one.code}: {one.message} {one.hint}" for one in ta.check(source)]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ("o[n h d] Wo[h d f] -> n f", "leg-count: 'o' has 2 legs (n h_d), got 3. e.g. 'o[n (h d)]'."),
        (
            "o[n h_d] Wo[h d f] -> n f",
            "dangling: leg 'h_d' dangles: it is on one tensor of the product and not in the result. write '(h d)' in "
            "its place, to have its legs again.",
        ),
    ],
)
def test_a_hint_says_how_joined_legs_are_used(y: str, message: str) -> None:
    source = several({"rmsnorm": "d"})
    y_last = {name: step for name, step in source["diagram"].items() if name != "y"}
    source["diagram"] = y_last | {"o": "A[h n m] V[m h d] -> n (h d)", "y": y}
    assert [f"{one.code}: {one.message} {one.hint}" for one in ta.check(source)] == [message]
    source["diagram"]["y"] = "o[n (h d)] Wo[h d f] -> n f"
    assert ta.check(source) == []


def test_a_file_may_say_it_in_lists_and_is_written_so() -> None:
    design = ta.load(several({"rmsnorm": ["h", "d"]}))
    assert ta.build(ta.load(design.to_yaml())) == ta.build(design)
    one = several({"rmsnorm": ["d"]})
    assert ta.build(ta.load(one)) == ta.build(ta.load(several({"rmsnorm": "d"})))


def test_shared_is_another_word_for_head() -> None:
    legs = JOINED["legs"]
    graphs = [ta.build(ta.load(JOINED | {"legs": legs | {"h": f"{word} 3"}})) for word in ("head", "shared")]
    assert graphs[0] == graphs[1]
    assert ta.load(JOINED | {"legs": legs | {"h": "shared 3"}}, legs={"h": 6}).legs["h"] == 6
