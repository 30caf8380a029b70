"""The decoding cache carries what was seen from segment to segment: one long sequence, cut behind each segment."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import tensornet_attn as ta
from tests.models import tiny
from tests.refusals import refusal

UNLIMITED = ["linear", "fast_weight1", "fmm2_causal", "mhsa"]
CARRIED = "linear fast_weight1 fmm_fast_weight2 band mhsa alibi mla transformer_xl gfish epa".split()


def model_with(name: str, memory: int = 12, kind: str = "cache", **config) -> ta.models.LanguageModel:
    return tiny.of_mixer(name, memory=memory, memory_kind=kind, **config)


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("sizes", [[4, 4, 4], [1, 5, 6]])
@pytest.mark.parametrize("name", UNLIMITED)
def test_segments_are_one_long_sequence(name: str, sizes: list[int]) -> None:
    model, x, targets = model_with(name), tiny.tokens(2, 12), tiny.tokens(2, 12, seed=3)
    y, _ = tiny.segments(model, x, sizes)
    torch.testing.assert_close(loss_of(y, targets), loss_of(model(x), targets), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(y, model(x), rtol=1e-9, atol=1e-10)
    assert (y - torch.cat([model(part) for part in x.split(sizes, 1)], 1)).abs().max() > 1e-3


@pytest.mark.parametrize("name", CARRIED)
def test_gradients_are_those_through_the_last_segment(name: str) -> None:
    """Of what the cache holds none: differences of the loss, with the cache as it is, along a random direction."""
    model, x, targets = model_with(name, 5), tiny.tokens(2, 12), tiny.tokens(2, 4, seed=3)
    memory = model.new_memory(2)
    for part in x[:, :8].split(4, 1):
        y, memory = model(part, memory=memory)
        y.square().sum().backward()
    model.zero_grad()
    kept = copy.deepcopy(memory)
    loss_of(model(x[:, 8:], memory=memory)[0], targets).backward()
    generator = torch.Generator().manual_seed(2)
    away = [torch.randn(value.shape, generator=generator, dtype=value.dtype) for value in model.parameters()]
    slope = sum((value.grad * step).sum() for value, step in zip(model.parameters(), away, strict=True))
    found = []
    with torch.no_grad():
        for sign in (1e-5, -2e-5):
            for value, step in zip(model.parameters(), away, strict=True):
                value += sign * step
            found.append(loss_of(model(x[:, 8:], memory=copy.deepcopy(kept))[0], targets))
    torch.testing.assert_close((found[0] - found[1]) / 2e-5, slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["mhsa", "alibi", "mla", "mhsa_rope", "epa_rope", "transformer_xl", "gfish", "epa"])
def test_the_last_positions_are_those_of_a_memory_of_inputs(name: str) -> None:
    """While weights stand still, keys that are kept are those of the inputs that are."""
    model, other = model_with(name, 3), model_with(name, 3, "inputs")
    x = tiny.tokens(2, 14)
    y, _ = tiny.segments(model, x, [4, 2, 5, 3])
    torch.testing.assert_close(y, tiny.segments(other, x, [4, 2, 5, 3])[0], rtol=1e-9, atol=1e-10)
    assert (y - model(x)).abs().max() > 1e-3


def test_what_is_kept_is_bounded() -> None:
    part = {"design": "linear", "legs": {"h": 2}}
    model = model_with("mhsa", 5, layers=[{"mixer": tiny.part("mhsa"), "mlp": "mlp"}, {"mixer": part, "mlp": "mlp"}])
    memory, sizes = model.new_memory(2), set()
    for chunk in tiny.tokens(2, 18).split(6, 1):
        y, memory = model(chunk, memory=memory)
        y.sum().backward()
        sizes.add(memory.nbytes)
    assert (len(sizes), memory.length, memory.batch) == (1, 18, 2)
    assert (memory["layers.0.mixer"].length, memory["layers.1.mixer"].length) == (5, 18)
    assert not any(held.requires_grad for cache in memory.values() for held in map(cache.__getitem__, cache))
    assert sorted(memory) == ["layers.0.mixer", "layers.1.mixer"]


def test_losses_of_what_keeps_nothing() -> None:
    layers = [{"mixer": tiny.part("linear"), "mlp": {"design": "sigma_moe_regularised", "legs": {"e": 4, "l": 4}}}]
    model = model_with("linear", layers=layers)
    x = tiny.tokens(2, 8)
    _, memory = model(x[:, :4], memory=model.new_memory(2))
    y, memory, losses = model(x[:, 4:], memory=memory, losses=True)
    torch.testing.assert_close(y, model(x)[:, 4:], rtol=1e-9, atol=1e-10)
    assert list(losses) == ["layers.0.mlp.entropy"]


def test_a_mask_speaks_of_forgotten_positions_too() -> None:
    model, x = model_with("alibi", 3), tiny.tokens(2, 10)
    cache, plain = model.new_cache(), model.new_cache()
    with torch.no_grad():
        for one, mask in ((cache, None), (plain, torch.ones(2, 10, dtype=torch.bool))):
            model(x[:, :6], cache=one)
            one.keep_last(3)
            y = model(x[:, 6:], mask, cache=one)
    torch.testing.assert_close(y, model(x[:, 6:], cache=_again(model, x)), rtol=1e-10, atol=1e-11)
    assert cache.length == plain.length == 10


def test_keys_that_are_turned_are_not_dropped() -> None:
    layer = ta.compile(ta.load("mhsa_rope", legs={"f": 8, "h": 2}), causal=True)
    cache = layer.new_cache()
    layer(torch.randn(1, 5, 8), cache=cache)
    assert refusal(cache.keep_last, 3) == (
        "mhsa_rope: the oldest positions cannot be dropped: 'K' depends on absolute positions; create the cache with "
        "new_cache(droppable=True)."
    )
    assert cache.length == 5


def test_steps_may_be_called_as_the_entries_of_a_state() -> None:
    """Keys called length, values called forgotten: a checkpoint has them beside the numbers of that name."""
    own = {
        "tensornet": 1,
        "name": "own",
        "extends": "mhsa",
        "contains": {},
        "diagram": {
            "K": None,
            "V": None,
            "length": "x[m f] Wk[f h d] -> m h d",
            "forgotten": "x[m f] Wv[f h d] -> m h d",
            "A": {"softmax": "m", "scale": "d ** -0.5", "of": "Q[n h d] length[m h d] -> h n m"},
            "y": "A[h n m] forgotten[m h d] Wo[h d f] -> n f",
        },
    }
    layers = [{"mixer": {"design": own, "legs": {"h": 2}}}]
    model, x = tiny.language(memory=4, memory_kind="cache", layers=layers).eval(), tiny.tokens(2, 8)
    _, memory = model(x[:, :4], memory=model.new_memory(2))
    again = model.new_memory(2).with_tensors(memory.tensors())
    one, two = (model(x[:, 4:], memory=kept)[0] for kept in (memory, again))
    torch.testing.assert_close(one, two, rtol=0, atol=0)


def _again(model, x: torch.Tensor):
    cache = model.new_cache()
    model(x[:, :6], cache=cache)
    cache.keep_last(3)
    return cache


def refused(**config) -> str:
    with pytest.raises(ta.DesignError) as error:
        model_with(**config)
    (problem,) = error.value.problems
    return problem.message


def test_what_cannot_be_carried() -> None:
    assert refused(name="mgk_em") == (
        "the cache of 'mgk_em' cannot be carried: training updates the state 'pi', once per segment."
    )
    assert refused(name="moa_regularised") == (
        "the cache of 'moa_regularised' cannot be carried: its losses are computed over whole sequences."
    )
    assert refused(name="fmm_lra_release") == (
        "fmm_lra_release: no cache can be kept: 'far1.of' depends on the length 'm'."
    )
    scores = {"softmax": "m", "mask": "causal and prefix(2)", "of": "Q[n h d] K[m h d] -> h n m"}
    near = {"tensornet": 1, "name": "near", "extends": "mhsa", "diagram": {"A": scores}}
    assert refused(name="mhsa", layers=[{"mixer": {"design": near, "legs": {"h": 3}}}]) == (
        "the cache of 'near' cannot be carried: 'A' uses absolute positions, and the oldest are dropped."
    )
    assert refused(name="mhsa", memory=0) == "'memory_kind: cache' needs a memory, and 'memory' is 0."
    assert refused(name="mhsa", positions="learned") == (
        "'learned' positions restart in each segment, so they do not fit a memory."
    )


def test_calls_that_are_refused() -> None:
    model, x = model_with("mhsa"), tiny.tokens(2, 4)

    def message(*given, **options) -> str:
        return refusal(model, *given, **options)

    told = "give the memory that the last call returned, or new_memory(batch)."
    assert message(x, memory=ta.models.Memory(())) == f"memory is a Memory; {told}"
    assert message(x, memory=model.new_cache()) == f"memory is a cache of other designs; {told}"
    assert message(x, torch.ones(2, 4, dtype=torch.bool), model.new_memory(2)) == (
        "with 'memory_kind: cache', segments have no padding: leave out 'key_mask'."
    )
