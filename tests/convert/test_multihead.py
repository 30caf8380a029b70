"""Designs called as nn.MultiheadAttention: mhsa equals it, in torch's layers too; sizes, masks, maps, refusals."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tests.refusals import refusal

F64 = torch.float64
WIDTH, HEADS, N, M = 24, 4, 5, 7


def pair(**options: Any) -> tuple[nn.MultiheadAttention, Any]:
    """PyTorch's module, and mhsa with its weights."""
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(WIDTH, HEADS, dtype=F64, **options)
    for weight in plain.parameters():
        nn.init.normal_(weight, std=0.3)
    return plain, like(plain)


def like(plain: nn.MultiheadAttention) -> Any:
    sizes = {"bias": plain.in_proj_bias is not None, "batch_first": plain.batch_first, "dtype": F64}
    new = ta.nn.MultiheadAttention("mhsa", WIDTH, HEADS, **sizes)
    new.design.load_state_dict(ta.convert(plain, "mhsa", memory=True).state_dict())
    return new


def drawn(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=F64)


def hidden(*sizes: int) -> Tensor:
    """True where a query may not look; the first key is seen by all."""
    mask = torch.rand(*sizes) < 0.4
    mask[..., 0] = False
    return mask


def added(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=F64).masked_fill(mask, -torch.inf)


MASKS = {
    "none": lambda: (None, None),
    "padding": lambda: (None, hidden(2, M)),
    "padding, minus infinity": lambda: (None, added(hidden(2, M))),
    "padding, numbers": lambda: (None, drawn(2, M) + added(hidden(2, M))),
    "pairs": lambda: (hidden(N, M), None),
    "pairs and padding": lambda: (hidden(N, M), hidden(2, M)),
    "pairs, minus infinity": lambda: (added(hidden(N, M)), added(hidden(2, M))),
    "pairs, numbers": lambda: (drawn(N, M) + added(hidden(N, M)), added(hidden(2, M))),
    "heads": lambda: (hidden(2 * HEADS, N, M), hidden(2, M)),
    "heads, numbers": lambda: (drawn(2 * HEADS, N, M), drawn(2, M)),
    "heads, minus infinity, and numbers of keys": lambda: (added(hidden(2 * HEADS, N, M)), drawn(2, M)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", MASKS)
def test_mhsa_is_multihead_attention(masks: str, batch_first: bool, bias: bool) -> None:
    plain, new = pair(batch_first=batch_first, bias=bias)
    mask, padding = MASKS[masks]()
    q, k = drawn(2, N, WIDTH), drawn(2, M, WIDTH)
    q, k = (q, k) if batch_first else (q.transpose(0, 1), k.transpose(0, 1))
    found = []
    for module in (plain, new):
        x, memory = q.clone().requires_grad_(), k.clone().requires_grad_()
        options = {"attn_mask": mask, "key_padding_mask": padding}
        y, weights = module(x, memory, memory, **options, average_attn_weights=False)
        mean = module(x, memory, memory, **options)[1]
        alone, nothing = module(x, memory, memory, **options, need_weights=False)
        assert nothing is None
        gradients = torch.autograd.grad((y.square().sum() + alone.sum() + weights.square().sum()), (x, memory))
        found.append((y, alone, weights, mean, gradients))
    torch.testing.assert_close(found[1], found[0])


def test_a_sequence_alone_needs_no_batch() -> None:
    plain, new = pair()
    q, k = drawn(N, WIDTH), drawn(M, WIDTH)
    options = {"attn_mask": hidden(HEADS, N, M), "key_padding_mask": hidden(M)}
    torch.testing.assert_close(new(q, k, k, **options), plain(q, k, k, **options))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_layers_of_torch(batch_first: bool, norm_first: bool) -> None:
    options = {"dropout": 0.0, "batch_first": batch_first, "norm_first": norm_first, "dtype": F64}
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, **options)
    decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, 32, **options)
    swapped = swap(copy.deepcopy(encoder), "self_attn"), swap(copy.deepcopy(decoder), "self_attn", "multihead_attn")
    x, memory, padding = drawn(2, N, WIDTH), drawn(2, M, WIDTH), hidden(2, N)
    x, memory = (x, memory) if batch_first else (x.transpose(0, 1), memory.transpose(0, 1))
    mask = nn.Transformer.generate_square_subsequent_mask(N, dtype=F64)
    calls: list[dict[str, Any]] = [{}, {"src_key_padding_mask": padding}, {"src_mask": mask, "is_causal": True}]
    for train, grad, call in itertools.product((True, False), (True, False), calls):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(swapped[0].train(train)(x, **call), encoder.train(train)(x, **call))
    call = {"tgt_mask": mask, "tgt_is_causal": True, "memory_key_padding_mask": hidden(2, M)}
    torch.testing.assert_close(swapped[1](x, memory, **call), decoder(x, memory, **call))


def swap(layer: nn.Module, *names: str) -> nn.Module:
    for name in names:
        setattr(layer, name, like(getattr(layer, name)))
    return layer


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("design", ["mhsa", "thsa", "linear"])
def test_no_fast_path_of_an_encoder_goes_around_it(design: str) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, dtype=F64), 2)
    for layer in encoder.layers:
        layer.self_attn = ta.nn.MultiheadAttention(design, WIDTH, HEADS, batch_first=True, dtype=F64)
    x, padding = drawn(2, N, WIDTH), torch.tensor([[False] * N, [False, False, False, True, True]])
    encoder.eval()
    wanted = encoder(x, src_key_padding_mask=padding)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x, src_key_padding_mask=padding), wanted)
    whole = torch.compile(encoder, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(x, src_key_padding_mask=padding), wanted)
    assert not torch.allclose(encoder(x), wanted)


SHIPPED = {
    "mhsa": {"h": 4, "d": 6},
    "gqa": {"g": 2, "j": 2, "d": 6},
    "mqa": {"h": 4},
    "fish": {"g": 4, "h": 4},
    "talking_heads": {"g": 4, "h": 4, "e": 4},
    "thsa": {"r": 24, "s": 24},
    "thsa_kron": {"h": 4, "d": 6},
    "mgk": {"h": 4, "r": 2},
    "heads_only": {"h": 4},
    "differential": {"h": 4, "d": 3},
    "lfish": {"g": 4, "h": 4},
    "fmm_fast_weight1": {"h": 4, "e": 6},
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_sizes_of_a_design(name: str) -> None:
    layer = ta.nn.MultiheadAttention(name, WIDTH, HEADS, batch_first=True).eval()
    assert {leg: layer.design.design.legs[leg] for leg in SHIPPED[name]} == SHIPPED[name]
    x = torch.randn(2, N, WIDTH)
    assert layer(x, x, x, need_weights=False)[0].shape == x.shape
    if name not in ("lfish", "fmm_fast_weight1"):
        y, weights = layer(x, x, x, average_attn_weights=False)
        assert weights.shape == (2, WIDTH if "thsa" in name else HEADS, N, N)
        torch.testing.assert_close(y, layer(x, x, x, need_weights=False)[0])


def test_sizes_may_be_chosen() -> None:
    sizes = {"g": 4, "j": 1}
    assert ta.nn.MultiheadAttention("gqa", WIDTH, HEADS, legs=sizes).design.design.legs["g"] == 4
    assert ta.nn.MultiheadAttention("gqa", WIDTH, HEADS, legs={"g": 1}).design.design.legs["j"] == 4
    assert ta.nn.MultiheadAttention("moa", WIDTH, HEADS, settings={"k": 2}).design.design.legs["e"] == 4


def three() -> dict[str, Any]:
    """Keys and values of their own inputs, with features of their own."""
    data = ta.load("cross").as_dict() | {"name": "three", "contains": {}}
    data["legs"] |= {"c": 512, "e": 512}
    data["inputs"] = {"x": "n f", "keys": "m c", "values": "m e"}
    data["weights"] |= {"Wk": "c h d", "Wv": "e h d"}
    data["diagram"] |= {"K": "keys[m c] Wk[c h d] -> m h d", "V": "values[m e] Wv[e h d] -> m h d"}
    return data


def test_keys_and_values_may_be_two_inputs() -> None:
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(WIDTH, HEADS, bias=False, kdim=8, vdim=10, batch_first=True, dtype=F64)
    new = ta.nn.MultiheadAttention(three(), WIDTH, HEADS, bias=False, kdim=8, vdim=10, batch_first=True, dtype=F64)
    weights = {"Wq": plain.q_proj_weight.T, "Wk": plain.k_proj_weight.T, "Wv": plain.v_proj_weight.T}
    weights["Wo"] = plain.out_proj.weight.T
    new.design.load_state_dict({key: value.reshape(getattr(new.design, key).shape) for key, value in weights.items()})
    q, k, v = drawn(2, N, WIDTH), drawn(2, M, 8), drawn(2, M, 10)
    torch.testing.assert_close(new(q, k, v), plain(q, k, v))


def test_masks_of_hugging_face_are_integers() -> None:
    _, new = pair(batch_first=True)
    x, padding = drawn(2, M, WIDTH), hidden(2, M)
    torch.testing.assert_close(new(x, x, x, key_padding_mask=(~padding).long()), new(x, x, x, key_padding_mask=padding))


def test_what_is_hidden_reaches_no_gradient() -> None:
    """Also where an encoder of torch has made minus infinities of a boolean mask."""
    _, new = pair(batch_first=True)
    for padding in (torch.tensor([[False] * 4 + [True]] * 2), added(torch.tensor([[False] * 4 + [True]] * 2))):
        q, x = drawn(2, N, WIDTH), drawn(2, 5, WIDTH)
        other = torch.cat((x[:, :4], x[:, 4:] + 1e3), 1)
        x.requires_grad_()
        y, weights = new(q, x, x, key_padding_mask=padding)
        assert torch.equal(new(q, other, other, key_padding_mask=padding)[0], y)
        assert not weights[..., 4].any()
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert gradient[:, :4].any()
        assert not gradient[:, 4].any()


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    _, new = pair(batch_first=True, bias=False)
    x = drawn(2, N, WIDTH).requires_grad_()
    y, weights = new(x, x, x, key_padding_mask=torch.ones(2, N, dtype=torch.bool))
    assert not y.any()
    assert not weights.any()
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


def test_a_causal_design_needs_no_mask() -> None:
    plain, _ = pair(batch_first=True, bias=False)
    new = ta.nn.MultiheadAttention("mhsa", WIDTH, HEADS, bias=False, batch_first=True, dtype=F64, causal=True)
    new.design.load_state_dict(ta.convert(plain, "mhsa", memory=True).state_dict())
    x, mask = drawn(2, N, WIDTH), nn.Transformer.generate_square_subsequent_mask(N, dtype=F64)
    wanted = plain(x, x, x, attn_mask=mask)
    for options in ({}, {"is_causal": True}, {"is_causal": True, "attn_mask": mask}, {"attn_mask": mask}):
        torch.testing.assert_close(new(x, x, x, **options), wanted)


def test_dropout_acts_in_training() -> None:
    layer = ta.nn.MultiheadAttention("mhsa", WIDTH, HEADS, dropout=0.5, batch_first=True)
    x = torch.randn(2, N, WIDTH)
    assert not torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
    torch.testing.assert_close(layer(x, x, x)[1], layer.eval()(x, x, x)[1])
    torch.testing.assert_close(layer(x, x, x)[0], layer(x, x, x)[0])


def test_copies_pickles_and_first_values() -> None:
    torch.manual_seed(0)
    layer, x = ta.nn.MultiheadAttention("fish", WIDTH, HEADS), torch.randn(N, 2, WIDTH)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other.eval()(x, x, x), layer.eval()(x, x, x))
    first = copy.deepcopy(layer.state_dict())
    torch.manual_seed(0)
    layer.reset_parameters()
    assert all(torch.equal(value, first[key]) for key, value in layer.state_dict().items())


def test_a_model_with_one_is_converted_around_it() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), 2).eval()
    own = encoder.layers[0].self_attn = ta.nn.MultiheadAttention("thsa", WIDTH, HEADS, batch_first=True)
    x = torch.randn(2, N, WIDTH)
    wanted = encoder(x)
    torch.testing.assert_close(ta.convert_model(encoder, "mhsa")(x), wanted, rtol=1e-4, atol=1e-5)
    assert encoder.layers[0].self_attn is own
    assert encoder.layers[1].self_attn.design.design.name == "mhsa"


def beside() -> dict[str, Any]:
    """A third input that has no keys."""
    data = ta.load("cross").as_dict()
    data["inputs"] |= {"beside": "n f"}
    data["diagram"] |= {"y": "A[h n m] V[m h d] Wo[h d f] + beside[n f] -> n f"}
    return data


MADE = {
    "mlp: its output contains no sum over keys, so it is not an attention.": ("mlp", {}),
    "add_bias_kv is not supported; a design defines its own keys.": ("mhsa", {"add_bias_kv": True}),
    "mhsa: kdim is 8, but its features are on leg 'f', which is 24.": ("mhsa", {"kdim": 8}),
    "mhsa: vdim is 8, but its features are on leg 'f', which is 24.": ("mhsa", {"vdim": 8}),
    "mhsa: leg 'f' is the feature leg of an input, 24; omit it from 'legs'.": ("mhsa", {"legs": {"f": 32}}),
    "'linear' has no softmax over its keys, so dropout cannot be added.": ("linear", {"dropout": 0.1}),
    "gqa: num_heads is 4, but its head legs are g 3, j 1; set them with legs={...}.": (
        "gqa",
        {"legs": {"g": 3}},
    ),
    "two: its output is [n, 48], but MultiheadAttention returns [n, 24].": (
        {"tensornet": 1, "name": "two", "extends": "mhsa", "legs": {"o": 48}, "contains": {},
         "weights": {"Wo": "h d o"}, "diagram": {"y": "A[h n m] V[m h d] Wo[h d o] -> n o"}},
        {},
    ),
    "cross: its inputs are 'x: n f', 'memory: m f', 'beside: n f'; MultiheadAttention needs an input of queries, e.g. "
    "'x: n f', and at most two more, e.g. 'memory: m f'.": (beside(), {}),
}  # fmt: skip


@pytest.mark.parametrize("message", MADE)
def test_designs_that_do_not_fit(message: str) -> None:
    design, options = MADE[message]
    assert refusal(lambda: ta.nn.MultiheadAttention(design, WIDTH, HEADS, **options)) == message


def test_calls_that_are_refused() -> None:
    x, y = torch.randn(2, N, WIDTH), torch.randn(2, M, WIDTH)
    layer = {
        name: ta.nn.MultiheadAttention(name, WIDTH, HEADS, batch_first=True, settings=settings)
        for name, settings in {"mhsa": {}, "linear": {}, "lfish": {}, "moa_regularised": {"k": 2}}.items()
    }
    mask, heads = torch.randn(N, N), hidden(2 * HEADS, N, N)
    assert [
        refusal(lambda: layer["mhsa"](x, y, torch.randn(2, M, WIDTH))),
        refusal(lambda: layer["moa_regularised"](x, y, y)),
        refusal(lambda: layer["mhsa"](x, x, x, is_causal=True)),
        refusal(lambda: layer["mhsa"](x, x, x, attn_mask=torch.ones(N, N, dtype=torch.int64))),
        refusal(lambda: layer["mhsa"](x, x, x, attn_mask=heads[:3])),
        refusal(lambda: layer["linear"](x, x, x, attn_mask=mask)),
        refusal(lambda: layer["lfish"](x, x, x)),
        refusal(lambda: layer["mhsa"](x[0], x, x)),
    ] == [
        "mhsa: keys and values have one input, 'memory'; pass the same tensor for both.",
        "moa_regularised: it has one input, 'x'; pass the same tensor for all three.",
        "mhsa: is_causal is only a hint about attn_mask; give attn_mask too.",
        "mhsa: attn_mask is torch.int64; give booleans (true = hidden) or floats (added).",
        "mhsa: attn_mask has shape [3, 5, 5]; give [n, m] or [batch * num_heads, n, m].",
        "linear: this design cannot add the values of attn_mask; give only zeros and minus infinity.",
        "lfish: it has no attention map to return; call with need_weights=False or output_attentions=False.",
        "mhsa: query, key and value must have 2 dimensions, or 3 with a batch.",
    ]


def test_heads_that_do_not_fit_the_width() -> None:
    assert refusal(ta.nn.MultiheadAttention, "mhsa", 64, 7).startswith(
        "'mhsa' does not fit embed_dim=64 and num_heads=7; change them, or set legs with legs={...}: mhsa.yaml:11:6: "
        "bad-size: leg 'd' is f / h = 9.14286"
    )
