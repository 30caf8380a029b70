"""Token by token, or chunk by chunk, is at once: every kind of model that generates, behind a cache."""

from __future__ import annotations

import copy

import pytest
import torch

import tensornet_attn as ta
from tests.models import tiny
from tests.refusals import refusal
from tests.work import reads

SPLITS = [3, 1, 1, 2, 1]
NAMES = [name for name in tiny.CAUSAL if name not in ("fmm_lra_release", "sigmoid_attention", "gau")]


def padded(batch: int = 3, n: int = 8) -> torch.Tensor:
    """Tokens of which row i begins with i of padding."""
    return torch.arange(n) >= torch.arange(batch)[:, None]


def in_chunks(call, cache, tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    found, end = [], 0
    for chunk in tokens.split(SPLITS, 1):
        end += chunk.shape[1]
        found.append(call(chunk, None if mask is None else mask[:, :end], cache))
    assert cache.length == end
    return torch.cat(found, 1)


@pytest.mark.parametrize("name", NAMES)
def test_chunks_are_at_once(name: str) -> None:
    model, tokens, mask = tiny.of_mixer(name, positions="learned"), tiny.tokens(3, 8), padded()
    with torch.no_grad():
        for own in (None, mask) if ta.build(ta.load(name)).key else (None,):
            wanted = model(tokens, own)
            found = in_chunks(lambda x, m, cache: model(x, m, cache=cache), model.new_cache(), tokens, own)
            here = slice(None) if own is None else own
            torch.testing.assert_close(found[here], wanted[here], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoid"])
@pytest.mark.parametrize("kind", ["post_norm", "untied", "layers"])
def test_what_a_model_is_made_of(positions: str, kind: str) -> None:
    """Norms behind, other outputs, several kinds of layer, one of them a mixer alone."""
    layers = [{"mixer": tiny.part("band")}, *tiny.LAYERS, {"mixer": {"design": "linear", "legs": {"h": 2}}}]
    config = {
        "post_norm": {"post_norm": True, "norm": "rmsnorm"},
        "untied": {"tied": False, "output_bias": True, "embedding_scale": "width ** 0.5"},
        "layers": {"layers": layers, "width": 12},
    }[kind]
    model = tiny.spread(tiny.language(positions=positions, dropout=0.3, **config)).eval()
    tokens = tiny.tokens(3, 8)
    with torch.no_grad():
        found = in_chunks(lambda x, m, cache: model(x, m, cache=cache), model.new_cache(), tokens, None)
        torch.testing.assert_close(found, model(tokens), rtol=1e-10, atol=1e-10)
        last = torch.tensor([7, 15, 23])
        cache = model.new_cache()
        model(tokens[:, :5], cache=cache)
        y = model(tokens[:, 5:], cache=cache, at=torch.tensor([2, 5, 8]))
        torch.testing.assert_close(y, model(tokens, at=last), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
def test_positions_are_those_given(positions: str) -> None:
    """A sequence behind padding is the sequence alone, where its positions say so."""
    model = tiny.spread(tiny.language(positions=positions)).eval()
    tokens, mask = tiny.tokens(3, 8), padded()
    places = (mask.cumsum(1) - 1).clamp(min=0)
    whole = model(tokens, mask, positions=places)
    for row, start in enumerate((0, 1, 2)):
        torch.testing.assert_close(whole[row, start:], model(tokens[row : row + 1, start:])[0], rtol=1e-9, atol=1e-10)
    with torch.no_grad():
        cache = model.new_cache()
        model(tokens[:, :6], mask[:, :6], positions=places[:, :6], cache=cache)
        rest = model(tokens[:, 6:], mask, positions=places[:, 6:], cache=cache)
    torch.testing.assert_close(rest, whole[:, 6:], rtol=1e-10, atol=1e-10)
    learned = tiny.language(positions="learned", length=4)
    assert learned(tokens[:1, :5], positions=torch.tensor([[0, 0, 1, 2, 3]])).shape == (1, 5, tiny.VOCABULARY)
    for row in ([[0, 1, 2, 3, 4]], [[9, 10, 11]], [[0, 1, -1]]):
        wanted = "'positions' has values outside 0 to 3, the positions that the model has learned."
        assert refusal(learned, tokens[:1, : len(row[0])], positions=torch.tensor(row)) == wanted
    for wrong, what in ((torch.zeros(1, 3), "[1, 3] torch.float32"), (torch.arange(2), "[2] torch.int64")):
        wanted = f"'positions' is {what}; give [1, 3], torch.int64."
        assert refusal(learned, tokens[:1, :3], positions=wrong) == wanted
    mask = torch.ones(1, 4, dtype=torch.bool)  # counts no more positions than there are
    counts = [reads(lambda: model(tokens[:1, :4], mask)) for model in (learned, tiny.language())]  # noqa: B023
    assert counts[0] == counts[1]
    assert refusal(learned, tokens[:1, :5]) == "the call reaches 5 positions, but the model has learned 4: shorten it."


def test_a_chunk_has_gradients_and_padding_none() -> None:
    model, tokens, mask = tiny.of_mixer("mhsa_rope", positions="learned"), tiny.tokens(3, 8), padded()
    tokens[~mask] = 7
    tokens[mask] = tokens[mask] % 7
    cache = model.new_cache()
    model(tokens[:, :5], mask[:, :5], cache=cache)
    y = model(tokens[:, 5:], mask, cache=cache)
    untied = y.square().sum() - y[..., 7].square().sum()
    untied.backward()
    assert model.embedding.weight.grad[7].abs().max() == 0
    assert model.embedding.weight.grad[tokens[:, 5:].flatten()].abs().min() > 0


@pytest.mark.parametrize("positions", ["none", "learned"])
def test_a_decoder_reads_its_source_once(positions: str) -> None:
    model = tiny.spread(tiny.seq2seq(positions=positions)).eval()
    source, target = tiny.tokens(3, 5, seed=2), tiny.tokens(3, 8)
    source_mask = padded(3, 5).flip(1)
    with torch.no_grad():
        for mask in (None, padded()):
            encoded = model.encode(source, source_mask)
            wanted = model(source, target, source_mask, mask)
            cache = model.new_cache()
            found = in_chunks(
                lambda x, m, cache, e=encoded: model.decode(e, x, source_mask, m, cache=cache), cache, target, mask
            )
            here = slice(None) if mask is None else mask
            torch.testing.assert_close(found[here], wanted[here], rtol=1e-10, atol=1e-10)
            assert {cache[place].length for place in cache if place.endswith(".cross")} == {5}


def test_sequences_are_reordered_repeated_and_forgotten() -> None:
    model, tokens = tiny.of_mixer("mhsa_rope", positions="learned"), tiny.tokens(3, 8)
    with torch.no_grad():
        wanted, cache = model(tokens), model.new_cache(max_length=8)
        model(tokens[:, :6], cache=cache)
        held = cache.nbytes
        cache.crop(-2)
        assert (cache.length, cache.nbytes * 6, len(cache)) == (4, held * 4, 4)
        order = torch.tensor([2, 0, 0])
        beams = copy.deepcopy(cache)
        beams.reorder(order)
        beams.repeat_interleave(2)
        rows = order.repeat_interleave(2)
        torch.testing.assert_close(model(tokens[rows, 4:], cache=beams), wanted[rows, 4:], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(model(tokens[:, 4:], cache=cache), wanted[:, 4:], rtol=1e-10, atol=1e-10)
        cache.reset()
        assert repr(cache) == "ModelCache(0 positions, 0 bytes in 4 designs)"


def test_what_is_refused() -> None:
    model, tokens = tiny.of_mixer("transformer_xl", memory=4, positions="none"), tiny.tokens(2, 4)
    cache = model.new_cache()

    def message(*given, of=model, **options) -> str:
        return refusal(of, *given, **options)

    assert message(tokens, memory=model.new_memory(2), cache=cache) == (
        "a call takes a memory or a cache, not both: leave out one of the two."
    )
    assert message(tokens, cache=cache, losses=True) == (
        "a call with a cache computes no losses: leave out 'losses' or the cache."
    )
    one_layer = tiny.language(layers=[*tiny.LAYERS, "mhsa"])
    assert message(tokens, of=one_layer, cache=cache) == (
        "this cache belongs to another model than 'language_model'; create one by new_cache()."
    )
    model(tokens, cache=cache)
    assert message(tokens, torch.ones(2, 4, dtype=torch.bool), cache=cache) == (
        "'key_mask' is [2, 4] torch.bool; give [2, 8], torch.bool, true = a token."
    )
    cache["layers.0.mixer"].reset()
    assert message(tokens, cache=cache) == (
        "a call with this cache has failed: 'layers.0.mlp' has seen 4 positions, 'layers.0.mixer' 0; reset the cache."
    )
    none = tiny.of_mixer("fmm_lra_release", positions="none")
    assert refusal(none.new_cache) == (
        "layers.0.mixer: fmm_lra_release: no cache can be kept: 'far1.of' depends on the length 'm'."
    )
