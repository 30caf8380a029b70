"""A softmax beside a sink, one more score of no value: every way to compute it is the softmax with one more column."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.errors import DesignError
from tests.agreement import in_chunks, modules
from tests.random_call import F64, assert_same, results, same_results

PLAIN = "(d ** -0.5) * Q[n h d] K[m h d] -> h n m"
SCORES: dict[str, Any] = {
    "fused": PLAIN,
    "blocks": {"map": "softcap(3)", "of": PLAIN},
    "mixed": "(d ** -0.5) * Q[n h d] K[m h d] + P[h g] Q[n g d] K[m g d] -> h n m",
}
SINKS = {"number": 0, "heads": "b[h]", "scalar": "c[]", "rows": "b[h] + u[n] -> h n", "queries": "u[n]"}


def design(
    scores: str = "fused", sink: str = "heads", mask: str = "", causal: bool = False, dropout: float = 0
) -> dict[str, Any]:
    """Attention of two heads; values have one more leg than queries."""
    box = {"softmax": "m", "sink": SINKS[sink], "of": SCORES[scores], "dropout": dropout}
    spoken = str(box)
    weights = {"b": "h", "c": [], "P": "h g", "Wu": "f"}
    used = {"b": "b[", "c": "c[", "P": "P[", "Wu": "u["}
    return {
        "tensornet": 1,
        "name": "sinks",
        "extends": "mhsa",
        "causal": causal,
        "legs": {"f": 6, "h": "head 2"} | ({"g": "head 2"} if "P[" in spoken else {}) | {"d": "f / h"},
        "weights": {
            name: {"legs": legs, "init": "normal(1)"} for name, legs in weights.items() if used[name] in spoken
        },
        "diagram": ({"u": "x[n f] Wu[f] -> n"} if "u[" in spoken else {})
        | {"A": box | ({"mask": mask} if mask else {})},
    }


def masks(kind: str, n: int, m: int) -> dict[str, torch.Tensor]:
    """Masks of a call; the third query sees nothing."""
    draw = torch.Generator().manual_seed(n)
    keep = torch.rand(n, m, generator=draw) < 0.6
    keep[2:3] = False
    numbers = torch.randn(2, n, m, generator=draw, dtype=F64).masked_fill(~keep, -torch.inf)
    keys = torch.rand(2, m, generator=draw) < 0.6
    return {"": {}, "boolean": {"mask": keep}, "float": {"mask": numbers}, "keys": {"key_mask": keys}}[kind]


OPTIONS = ({}, {"n": 4096, "m": 4096}, {"linear_memory": True, "n": 512}, {"workload": "decoding"})
CASES = [
    ("fused", "number", "", True),
    ("fused", "heads", "causal and window(2, 0)", True),
    ("fused", "rows", "", False),
    ("fused", "queries", "prefix(2) or band(1)", False),
    ("blocks", "heads", "", True),
    ("blocks", "rows", "window(2, 1)", False),
    ("mixed", "scalar", "", True),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["", "boolean", "float", "keys"])
@pytest.mark.parametrize(("scores", "sink", "mask", "causal"), CASES)
def test_values_and_gradients(
    scores: str, sink: str, mask: str, causal: bool, kind: str, options: dict[str, Any]
) -> None:
    oracle, module = modules(design(scores, sink, mask, causal), **options)
    for n in (1, 7, 40):
        x, call = [torch.randn(2, n, 6, dtype=F64)], masks(kind, n, n)
        same_results(module, oracle, x, call)


@pytest.mark.parametrize(("scores", "sink", "mask", "causal"), CASES)
def test_values_and_gradients_of_some(scores: str, sink: str, mask: str, causal: bool) -> None:
    test_values_and_gradients(scores, sink, mask, causal, "boolean", {"linear_memory": True, "n": 512})


@pytest.mark.parametrize("sink", ["heads", "number"])
def test_the_reference_is_a_column_more(sink: str) -> None:
    """A sink of zero is a softmax off by one."""
    layer, x = ta.reference(design(sink=sink), dtype=F64), torch.randn(3, 5, 6, dtype=F64)
    q, k, v = (
        torch.einsum("bnf,fhd->bhnd", x, weight) for weight in (layer.Wq, layer.Wk, layer.Wv)
    )  # as gpt-oss: transformers, models/gpt_oss/modeling_gpt_oss.py, eager_attention_forward
    column = layer.b[:, None, None] if sink == "heads" else torch.zeros((), dtype=F64)
    scores = torch.cat([q @ k.mT / 3**0.5, column.expand(3, 2, 5, 1)], -1)
    wanted = torch.einsum("bhnd,hdf->bnf", scores.softmax(-1)[..., :-1] @ v, layer.Wo)
    torch.testing.assert_close(layer(x), wanted)


def test_it_is_one_call_of_fused_attention() -> None:
    """And with a window one of bands: as without a sink."""
    assert "A: fused attention: scaled_dot_product_attention" in ta.compile(design(causal=True), n=512).explain()
    assert "A.o: banded attention" in ta.compile(design(mask="causal and window(7, 0)"), n=512).explain()


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "one more key"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [1, 5])
def test_functions_of_the_runtime(kernel: bool, causal: bool, rows: int) -> None:
    """Also where no kernel of a CPU takes it: with one more key, as on other devices."""
    from tensornet_attn.runtime.masks import causal_mask
    from tensornet_attn.runtime.sink import attention_beside_sink, sink_as_key
    from tensornet_attn.runtime.softmax import sink_softmax

    q, k, v = (torch.randn(2, 4, 5, width, dtype=F64).requires_grad_() for width in (3, 3, 3))
    sink = torch.randn(2, 4, rows, 1, dtype=F64).requires_grad_()
    keep = None if causal else (torch.rand(2, 1, 5, 5) < 0.7) | torch.eye(5, dtype=torch.bool)
    call = attention_beside_sink if kernel else sink_as_key
    found = call(q, k, v, keep, 0.0, causal, 0.7, sink)
    wanted = sink_softmax(0.7 * q @ k.mT, sink, causal_mask(5, 5) if causal else keep) @ v
    torch.testing.assert_close(found, wanted)
    g = torch.randn(wanted.shape, dtype=F64)
    for one, other in zip(*(torch.autograd.grad(y, (q, k, v, sink), g) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other)


def test_one_graph_with_gradients() -> None:
    oracle, module = modules(design())
    assert "scaled_dot_product_attention" in module.explain()
    torch._dynamo.reset()
    compiled, x = torch.compile(module, fullgraph=True, backend="aot_eager"), torch.randn(2, 7, 6, dtype=F64)
    weights = [*zip(module.parameters(), oracle.parameters(), strict=True)]
    found = torch.autograd.grad(compiled(x).square().sum(), [one for one, _ in weights])
    wanted = torch.autograd.grad(oracle(x).square().sum(), [one for _, one in weights])
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kind", ["", "boolean", "float"])
def test_derivatives_along_and_second_ones(kind: str) -> None:
    """`jvp`, and gradients of gradients, as the reference has them; the third query sees nothing."""
    oracle, module = modules(design(causal=kind != "float"))
    x, call = torch.randn(2, 7, 6, dtype=F64), masks(kind, 7, 7)
    t = torch.randn_like(x)
    assert "scaled_dot_product_attention" in module.explain()

    def along(layer: Any) -> torch.Tensor:
        return torch.func.jvp(lambda x: layer(x, **call), (x,), (t,))[1]

    def second(layer: Any) -> list[torch.Tensor]:
        own = x.clone().requires_grad_()
        first = torch.autograd.grad(layer(own, **call).square().sum(), own, create_graph=True)[0]
        return [*torch.autograd.grad((first * t).sum(), [own, *layer.parameters()])]

    def curved(layer: Any) -> torch.Tensor:
        return torch.func.hessian(lambda x: layer(x, **call).square().sum())(x)

    for derivative in (along, second, curved):
        torch.testing.assert_close(derivative(module), derivative(oracle))


def test_dropout_is_of_the_weights() -> None:
    torch.manual_seed(0)
    module = ta.compile(design(dropout=0.5), dtype=F64).train()
    x = torch.randn(1, 200, 6, dtype=F64)
    mean = torch.stack([module(x) for _ in range(200)]).mean(0)
    torch.testing.assert_close(mean, module.eval()(x), rtol=0, atol=0.1)


@pytest.mark.parametrize("mask", ["", "causal and window(2, 0)"])
def test_chunks_are_the_same_as_at_once(mask: str) -> None:
    oracle, module = modules(design("blocks", "rows", mask, True))
    x = torch.randn(2, 13, 6, dtype=F64)
    torch.testing.assert_close(in_chunks(module.eval(), x, [5, 1, 7]), oracle(x))


def test_no_term_of_the_scores_is_dropped_beside_a_sink() -> None:
    """What all keys have in common changes what the sink takes."""
    source = design()
    source["diagram"]["A"]["of"] = "(d ** -0.5) * Q[n h d] K[m h d] + b[h] -> h n m"
    source["diagram"]["A"]["sink"] = 1
    oracle, module = modules(source)
    x = [torch.randn(2, 9, 6, dtype=F64)]
    found = results(module, x, {})
    assert found["gradient of b"].abs().min() > 1e-3  # type: ignore[union-attr]
    assert_same(found, results(oracle, x, {}))


def gated() -> dict[str, Any]:
    """A sink as it was written before there was one."""
    source = design(mask="causal and window(5, 0)")
    box = source["diagram"]["A"]
    box.pop("sink")
    level = {"logsumexp": "m", "mask": box["mask"], "of": PLAIN}
    gate = {"map": "sigmoid", "of": "level[h n] - b[h] -> h n"}
    read = "A[h n m] gate[h n] V[m h d] Wo[h d f] -> n f"
    return source | {"diagram": {"A": box, "level": level, "gate": gate, "y": read}}


def test_a_gate_of_a_logsumexp_is_planned_as_a_sink() -> None:
    oracle, module = modules(gated(), n=512)
    assert "A.o: banded attention" in module.explain()
    x = [torch.randn(2, 23, 6, dtype=F64)]
    same_results(module, oracle, x)
    sink = ta.reference(design(mask="causal and window(5, 0)"), dtype=F64)
    sink.load_state_dict(oracle.state_dict())
    torch.testing.assert_close(oracle(*x), sink(*x))
    assert ta.compile(gated(), n=4096).plan.schedule == ta.compile(gated(), n=4096).plan.schedule


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("Wv[m h d]", "'sink' has leg 'm'; the rows of this softmax have h n."),
        ("t[d]", "'sink' has leg 'd'; the rows of this softmax have h n."),
        (True, "expected an expression or a box, got true."),
        ("0", "this expression has no '->' with the legs of its result."),
    ],
)
def test_what_is_refused(sink: Any, said: str) -> None:
    source = design()
    weights = {"t": "d"} if sink == "t[d]" else {}
    source["weights"] = weights
    source["diagram"]["A"]["sink"] = "V[m h d]" if sink == "Wv[m h d]" else sink
    with pytest.raises(DesignError) as error:
        ta.compile(source)
    assert said in str(error.value)


def test_its_yaml_reads_back() -> None:
    assert ta.build(ta.load(ta.load(design("fused", "number")).to_yaml())) == ta.build(
        ta.load(design("fused", "number"))
    )
