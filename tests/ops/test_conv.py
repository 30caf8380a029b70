"""Convolutions along a sequence: depthwise, full, by head, of scores; masks, gradients, caches of the last ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tensornet_attn as ta
from tests.ops.compared import F64, agree

N, C = 9, 6
LEGS = {"n": "query", "m": "key", "c": C, "e": 4, "w": 4, "g": "head 2", "d": 3, "k": 11}
FORMS = {
    "depthwise": ({"W": "w c"}, "x[n c] W[w c] -> n w c", "n c"),
    "full": ({"W": "w c e"}, "x[n c] W[w c e] -> n w e", "n e"),
    "one": ({"W": "w"}, "x[n c] W[w] -> n w c", "n c"),
    "scaled": ({"W": "w c", "s": "c"}, "(0.5) * x[n c] W[w c] s[c] -> n w c", "n c"),
    "projected": ({"W": "w e", "P": "c e"}, "x[n c] P[c e] W[w e] -> n w e", "n e"),
    "grouped": ({"P": "c g d", "W": "w g d e"}, "x[n c] P[c g d] W[w g d e] -> n w g e", "n g e"),
    "summed": ({"W": "w c"}, "x[n c] W[w c] -> n w", "n"),
    "long": ({"W": "k c"}, "x[n c] W[k c] -> n k c", "n c"),
    "several": ({"W": "w c e"}, "x[n c] W[w c e] -> n w c e", "n c e"),
    "sums": ({"W": "w c", "b": "w c"}, "x[n c] W[w c] + b[w c] -> n w c", "n c"),
}


def alone(form: str, causal: bool = True) -> dict[str, Any]:
    """One convolution, and no keys."""
    weights, of, _ = FORMS[form]
    words = set(" ".join([*weights.values(), of]).replace("[", " ").replace("]", " ").split()) | {"c"}
    return {
        "tensornet": 1,
        "name": "convolved",
        "causal": causal,
        "legs": {leg: size for leg, size in LEGS.items() if leg in words},
        "inputs": {"x": "n c"},
        "weights": weights,
        "diagram": {"y": {"conv": "n", "width": "k" if form == "long" else "w", "of": of}},
        "output": "y",
    }


def drawn(layer: Any) -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [1, 2, N])
def test_torch_and_reference_agree(form: str, causal: bool, length: int) -> None:
    agree(alone(form, causal), torch.randn(2, length, C, dtype=F64))
    agree(alone(form, causal), torch.randn(length, C, dtype=F64))


@pytest.mark.parametrize(("form", "groups"), [("depthwise", C), ("full", 1)])
@pytest.mark.parametrize("causal", [True, False])
def test_is_conv1d_of_torch(form: str, groups: int, causal: bool) -> None:
    """Padded on the left where it is causal, else as padding='same' has it."""
    layer = drawn(ta.compile(alone(form, causal), dtype=F64))
    x = torch.randn(2, N, C, dtype=F64)
    weight = layer.W.permute(2, 1, 0) if form == "full" else layer.W.T[:, None]
    sides = (3, 0) if causal else (1, 2)
    wanted = F.conv1d(F.pad(x.mT, sides), weight, groups=groups).mT
    torch.testing.assert_close(layer(x), wanted, rtol=0, atol=1e-12)
    assert "n w c" not in layer.source  # the product is never made


@pytest.mark.parametrize("form", FORMS)
def test_a_cache_keeps_the_last_positions(form: str) -> None:
    layer = drawn(ta.compile(alone(form), dtype=F64)).eval()
    x, cache = torch.randn(2, N, C, dtype=F64), layer.new_cache()
    with torch.no_grad():
        found = [layer(x[:, a:b], cache=cache) for a, b in ((0, 1), (1, 3), (3, 4), (4, N))]
        torch.testing.assert_close(torch.cat(found, 1), layer(x), rtol=0, atol=1e-12)
    (name,) = cache
    assert cache[name].shape[1] == (N if form == "long" else 4)
    assert cache[name].shape[2:].numel() <= C


def test_a_centred_one_has_no_cache() -> None:
    with pytest.raises(ta.InputError, match="no cache can be kept: 'y' reads later positions; compile it with causal"):
        ta.compile(alone("full", False)).new_cache()


def attention(causal: bool = True, **diagram: Any) -> dict[str, Any]:
    """Attention whose queries, keys and values are convolved, as in Mamba's and DeltaNet's layers."""
    return {
        "tensornet": 1,
        "name": "short",
        "causal": causal,
        "legs": {"n": "query", "m": "key", "f": 6, "h": "head 2", "d": 3, "w": 3},
        "inputs": {"x": "n f"},
        "weights": dict.fromkeys(("Wq", "Wk", "Wv"), "f h d") | {"Cq": "w h d", "Ck": "w h d", "Wo": "h d f"},
        "diagram": {
            "q": "x[n f] Wq[f h d] -> n h d",
            "k": "x[m f] Wk[f h d] -> m h d",
            "Q": {"conv": "n", "width": "w", "of": "q[n h d] Cq[w h d] -> n w h d"},
            "K": {"conv": "m", "width": "w", "of": "k[m h d] Ck[w h d] -> m w h d"},
            "V": "x[m f] Wv[f h d] -> m h d",
            "A": {"softmax": "m", "of": "Q[n h d] K[m h d] -> h n m"},
            "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
        }
        | diagram,
        "output": "y",
    }


@pytest.mark.parametrize("causal", [True, False])
def test_a_key_mask_hides_positions_from_it(causal: bool) -> None:
    """Along the keys: what is hidden counts as zero."""
    x, keys = torch.randn(2, N, 6, dtype=F64), torch.rand(2, N, generator=torch.Generator().manual_seed(0)) < 0.6
    layer = agree(attention(causal), x, key_mask=keys)
    other = torch.where(keys[..., None], x, 7)
    with torch.no_grad():
        k, moved = (layer.capture(value, "K", key_mask=keys) for value in (x, other))
    torch.testing.assert_close(k, moved, rtol=0, atol=1e-12)


def padded(layer: Any, x: torch.Tensor, before: int, after: int) -> None:
    """Rows that a key mask hides around a sequence change neither its outputs nor its gradients, whatever they hold."""
    shape = x.shape[0], before + x.shape[1] + after
    keys = torch.zeros(shape, dtype=torch.bool)
    keys[:, before : before + x.shape[1]] = True
    found = []
    for hidden in (None, 0.0, 1e6):
        row = x if hidden is None else torch.full((*shape, x.shape[2]), hidden, dtype=F64)
        if hidden is not None:
            row[keys] = x.flatten(0, 1)
        row = row.requires_grad_()
        y = layer(row, key_mask=None if hidden is None else keys)
        y = y if hidden is None else y[:, before : before + x.shape[1]]
        grads = torch.autograd.grad(y.sin().sum(), (row, *layer.parameters()))
        found.append((y, grads[0] if hidden is None else grads[0][keys].view_as(x), *grads[1:]))
    for one in found[1:]:
        for value, wanted in zip(one, found[0], strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["depthwise", "sums", "attention", "scores"])
def test_a_key_mask_hides_the_rows_of_queries_that_are_keys(kind: str, causal: bool, backend: str) -> None:
    """A padded sequence equals the sequence alone: taps on padding read zeros, as taps beyond the ends do."""
    design = {"attention": attention, "scores": multi_token}.get(kind, partial(alone, kind))(causal)
    layer = drawn(ta.compile(design, backend, dtype=F64))
    for before, after in ((2, 0), (0, 3), (2, 1)):
        padded(layer, torch.randn(2, 5, 6, dtype=F64), before, after)


@pytest.mark.parametrize("form", ["depthwise", "sums"])
def test_a_cache_hides_rows_too(form: str) -> None:
    """In the first chunk, in longer ones and in single steps."""
    layer, x = drawn(ta.compile(alone(form), dtype=F64)).eval(), torch.randn(2, N, C, dtype=F64)
    keys = torch.ones(2, N, dtype=torch.bool)
    keys[0, :2] = False
    with torch.no_grad():
        for ends in ((1, 2, 3, 6, N), (2, 5, 6, N), (4, 5, N)):
            cache, starts = layer.new_cache(), (0, *ends)
            found = [layer(x[:, a:b], key_mask=keys[:, :b], cache=cache) for a, b in zip(starts, ends, strict=False)]
            torch.testing.assert_close(torch.cat(found, 1)[0, 2:], layer(x[0, 2:]), rtol=0, atol=1e-12)
            torch.testing.assert_close(torch.cat(found, 1)[1], layer(x[1]), rtol=0, atol=1e-12)


def test_queries_and_keys_decode() -> None:
    layer = drawn(ta.compile(attention(), dtype=F64)).eval()
    x, cache = torch.randn(2, N, 6, dtype=F64), layer.new_cache()
    keys = torch.ones(2, N, dtype=torch.bool)
    keys[0, :2] = False
    with torch.no_grad():
        found = [layer(x[:, a:b], cache=cache, key_mask=keys[:, :b]) for a, b in ((0, 3), (3, 4), (4, 7), (7, N))]
        torch.testing.assert_close(torch.cat(found, 1), layer(x, key_mask=keys), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_documents_of_a_packed_call_do_not_meet(causal: bool) -> None:
    """Nor does what pads the shorter ones."""
    layer = drawn(ta.compile(attention(causal), dtype=F64)).eval()
    parts = [torch.randn(length, 6, dtype=F64) for length in (3, 5, 3, 1, 4)]
    offsets = torch.tensor([0, 3, 8, 11, 12, 16])
    with torch.no_grad():
        y = layer(torch.cat(parts)[None], cu_seqlens=offsets)
        torch.testing.assert_close(y, torch.cat([layer(part) for part in parts])[None], rtol=0, atol=1e-12)
        if causal:  # a cache pads before the documents
            cache = layer.new_cache()
            kept = layer(torch.cat(parts)[None], cu_seqlens=offsets, cache=cache)
            torch.testing.assert_close(kept, y, rtol=0, atol=1e-12)
            step = torch.randn(5, 1, 6, dtype=F64)
            later = [layer(torch.cat([part, row]))[-1:] for part, row in zip(parts, step, strict=True)]
            torch.testing.assert_close(layer(step, cache=cache), torch.stack(later), rtol=0, atol=1e-12)


def test_one_position_may_have_any_strides() -> None:
    """Those of a dimension of one entry say nothing, and PyTorch's own gradient in float64 refuses some."""
    from tensornet_attn.runtime.conv import convolve

    weight, found = torch.randn(12, 4, 2, dtype=F64, requires_grad=True), []
    x = torch.randn(12, dtype=F64)
    for strides in ((12, 1, 1), (12, 1, 4)):
        y = convolve(x.as_strided((1, 12, 1), strides).requires_grad_(), weight, 1, 3)
        found.append(torch.autograd.grad(y.square().sum(), weight)[0])
    torch.testing.assert_close(*found)


TWO = {
    "S": "Q[n h d] K[m h d] -> h n m",
    "T": {"conv": ["n", "m"], "width": ["a", "w"], "of": "S[h n m] T2[a w h] -> h n m a w"},
    "A": {"softmax": "m", "of": "T"},
}


def multi_token(causal: bool) -> dict[str, Any]:
    """Multi-token attention (Golovneva et al. 2025): scores convolved along queries and keys."""
    design = attention(causal)
    plain, y = design["diagram"], design["diagram"].pop("y")
    design["diagram"] = {name: plain[name] for name in ("q", "k", "Q", "K", "V")} | TWO | {"y": y}
    design["legs"] |= {"a": 2}
    design["weights"] |= {"T2": "a w h"}
    return design


@pytest.mark.parametrize("masked", ["none", "keys", "pairs"])
@pytest.mark.parametrize("causal", [True, False])
def test_scores_are_convolved(causal: bool, masked: str) -> None:
    """Hidden scores and hidden rows count as zero; along causal queries, no tap is at a later row."""
    x, generator = torch.randn(2, N, 6, dtype=F64), torch.Generator().manual_seed(0)
    masks = {
        "none": {},
        "keys": {"key_mask": torch.rand(2, N, generator=generator) < 0.6},
        "pairs": {"mask": torch.rand(2, N, N, generator=generator) < 0.6},
    }[masked]
    layer = drawn(agree(multi_token(causal), x, **masks))
    with torch.no_grad():
        scores, made = (layer.capture(x, name, **masks) for name in ("S", "T"))
    rows = masks.get("key_mask", torch.ones(1, N, dtype=torch.bool))
    see = masks.get("mask", torch.ones(2, N, N, dtype=torch.bool)) & rows[:, None] & rows[..., None]
    see = see.tril() if causal else see
    shown = F.pad(torch.where(see[:, None], scores, 0), (1, 1, *((1, 0) if causal else (0, 1))))
    wanted = F.conv2d(shown, layer.T2.permute(2, 0, 1)[:, None], groups=2)
    torch.testing.assert_close(made, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("suffix", ["svg", "txt", "mmd"])
def test_a_convolution_of_scores_is_drawn_and_priced(suffix: str) -> None:
    assert "conv" in ta.compiler.picture(multi_token(True), suffix).decode()
    with_it, without = (ta.cost(source, n=64).written.total for source in (multi_token(True), attention()))
    assert with_it.elementwise > without.elementwise


def test_scores_of_earlier_queries_are_in_no_cache() -> None:
    with pytest.raises(ta.InputError, match="no cache can be kept: 'T' reads scores of earlier queries"):
        ta.compile(multi_token(True)).new_cache()


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (
            {"conv": "c", "width": "w", "of": "x[n c] W[w c] -> n w c"},
            "box-leg: 'c' is not a query or key leg. name the leg to convolve along, e.g. 'conv: n'.",
        ),
        (
            {"conv": ["n"], "width": "w", "of": "x[n c] W[w c] -> n w c"},
            "wrong-type: expected a leg, or a list of two, got a list. e.g. 'conv: c'.",
        ),
        (
            {"conv": ["n", "m"], "width": "w", "of": "x[n c] W[w c] -> n w c"},
            "wrong-type: expected a width for each leg, got the text 'w'. e.g. 'conv: [n, m]' and 'width: [i, j]'.",
        ),
        (
            {"conv": ["n", "n"], "width": ["w", "c"], "of": "x[n c] W[w c] -> n w c"},
            "leg-twice: leg 'n' stands twice in 'conv'. a convolution of scores runs along both sequence legs, "
            "e.g. 'conv: [n, m]' and 'width: [i, j]'.",
        ),
        (
            {"conv": ["n", "c"], "width": ["w", "w"], "of": "x[n c] W[w c] -> n w c"},
            "leg-twice: leg 'w' stands twice in 'width'. a convolution of scores runs along both sequence legs, "
            "e.g. 'conv: [n, m]' and 'width: [i, j]'.",
        ),
        (
            {"conv": "n", "width": "w", "of": "x"},
            "box-leg: the operand of this box has no leg 'w'; its legs are n c. name one of its legs.",
        ),
    ],
)
def test_what_is_refused(box: dict[str, Any], message: str) -> None:
    design = alone("depthwise") | {"diagram": {"y": box}}
    assert message in [f"{one.code}: {one.message} {one.hint}" for one in ta.check(design)]
