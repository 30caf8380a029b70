"""Memory of earlier segments: the same function as one long segment, explicit, detached, bounded."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tests.models import tiny
from tests.refusals import refusal

XL = ("transformer_xl", "epa_xl")


@pytest.mark.parametrize("sizes", [[4, 4, 4], [1, 5, 6], [12]])
@pytest.mark.parametrize("name", XL)
@pytest.mark.parametrize("post_norm", [False, True])
def test_segments_with_memory_are_one_long_segment(name: str, sizes: list[int], post_norm: bool) -> None:
    model, x = tiny.of_mixer(name, memory=12, post_norm=post_norm), tiny.tokens(2, 12)
    y, memory = tiny.segments(model, x, sizes)
    torch.testing.assert_close(y, model(x), rtol=1e-9, atol=1e-10)
    assert [list(state.shape) for state in memory.states] == [[2, 12, 12]] * 2
    assert (y - torch.cat([model(part) for part in x.split(4, 1)], 1)).abs().max() > 1e-3 or sizes == [12]


@pytest.mark.parametrize("name", XL)
def test_padding_is_remembered_as_padding(name: str) -> None:
    model, x = tiny.of_mixer(name, memory=12), tiny.tokens(2, 12)
    keep = torch.ones(2, 12, dtype=torch.bool)
    keep[0, :3] = keep[1, 5] = False
    y, memory = tiny.segments(model, x, [4, 4, 4], keep)
    torch.testing.assert_close(y[keep], model(x, keep)[keep], rtol=1e-9, atol=1e-10)
    assert torch.equal(memory.keep, keep)


def test_a_mask_may_come_late() -> None:
    model, x = tiny.of_mixer("transformer_xl", memory=12), tiny.tokens(2, 8)
    keep = torch.ones(2, 8, dtype=torch.bool)
    keep[1, 6] = False
    _, memory = model(x[:, :4], None, model.new_memory(2))
    y, memory = model(x[:, 4:], keep[:, 4:], memory)
    torch.testing.assert_close(y[keep[:, 4:]], model(x, keep)[:, 4:][keep[:, 4:]], rtol=1e-9, atol=1e-10)
    assert torch.equal(memory.keep, keep)


def test_memory_keeps_so_many_rows_and_no_gradient() -> None:
    model, x = tiny.of_mixer("transformer_xl", memory=5), tiny.tokens(2, 12)
    _, memory = tiny.segments(model, x, [4, 4, 4])
    assert [state.shape[1] for state in memory.states] == [5, 5]
    assert not any(state.requires_grad for state in memory.states)
    y, _ = model(x[:, :4], None, memory)
    y.square().sum().backward()
    assert all(value.grad is not None for value in model.parameters())


def test_rows_beyond_the_memory_are_forgotten() -> None:
    model, x = tiny.of_mixer("transformer_xl", memory=2), tiny.tokens(1, 9)
    other = x.clone()
    other[:, 0] = (other[:, 0] + 1) % tiny.VOCABULARY
    (y, _), (z, _) = tiny.segments(model, x, [1] * 9), tiny.segments(model, other, [1] * 9)
    assert (y[:, 4] - z[:, 4]).abs().max() > 1e-9  # two layers of two rows each
    torch.testing.assert_close(y[:, 5:], z[:, 5:], rtol=1e-10, atol=1e-11)


def test_a_hybrid_remembers_where_a_design_has_a_context() -> None:
    part = tiny.part("transformer_xl")
    alone = {"design": tiny.ALONE, "legs": {"h": 3}}
    model = tiny.of_mixer(
        "transformer_xl", memory=12, layers=[{"mixer": part}, {"mixer": alone, "mlp": "mlp"}, {"mixer": part}]
    )
    y, memory = tiny.segments(model, tiny.tokens(2, 8), [4, 4])
    assert len(memory.states) == 2
    torch.testing.assert_close(y[:, :4], model(tiny.tokens(2, 8)[:, :4]), rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_one_graph() -> None:
    torch._dynamo.reset()
    model, x = tiny.of_mixer("transformer_xl", memory=12), tiny.tokens(2, 6)
    _, memory = model(x, None, model.new_memory(2))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    y, after = compiled(x, None, memory)
    wanted, wanted_after = model(x, None, memory)
    torch.testing.assert_close(y, wanted, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(after.states, wanted_after.states, rtol=1e-9, atol=1e-10)


def test_cost_of_a_memory() -> None:
    model = tiny.of_mixer("transformer_xl", memory=6)
    cost = model.cost(4, 2)
    design = ta.load("transformer_xl", legs={"f": 12, "h": 3})
    mixers = [row.macs for row in cost.rows if row.place.endswith("mixer")]
    assert mixers == [ta.cost(design, 4, 10, 2).macs] * 2
    assert cost.m == 10


def test_memories_that_do_not_fit() -> None:
    model, x = tiny.of_mixer("transformer_xl", memory=12), tiny.tokens(2, 4)
    _, memory = model(x, None, model.new_memory(2))
    wanted = "memory has a state of shape [2, 4, 12]; give [batch 1, rows, width 12]."
    assert refusal(model, x[:1], None, memory) == wanted
    wanted = "memory is a tuple; give the memory that the last call returned, or new_memory(batch)."
    assert refusal(model, x, None, tuple(memory.states)) == wanted
    wanted = "memory is 1 states; give the memory that the last call returned, or new_memory(batch)."
    assert refusal(model, x, None, ta.models.Memory(memory.states[:1])) == wanted
    wanted = "'language_model' has no memory; add e.g. 'memory: 128' to its description."
    assert refusal(tiny.language().new_memory, 2) == wanted
    assert refusal(tiny.language(), x, None, memory) == wanted
