"""Blocks of queries and what torch may do with them: compile, export, transforms, checkpoints, copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils.checkpoint import checkpoint

import tensornet_attn as ta
from tensornet_attn.runtime.blockwise import blockwise_backward, blockwise_forward
from tests.agreement import in_one_graph
from tests.runtime.blockwise_cases import (
    drawn,
    drawn_scores_rows,
    mixed,
    mixed_operands,
    mixed_plain,
    mixed_rows,
    relative,
    relative_operands,
    relative_plain,
    relative_scores_rows,
    same,
    some,
)

pytestmark = pytest.mark.usefixtures("in_blocks")


def masked(P: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, key_mask: Tensor) -> Tensor:
    return mixed(P, q, k, v, mask=mask, key_mask=key_mask)


def masked_operands(n: int, m: int, batch: int = 2) -> list[Tensor]:
    return [*mixed_operands(n, m, (batch,)), some(n, m) < 1, some(batch, m) < 1]


def call_of(given: list[Tensor], tile: str = mixed_rows, seed: Tensor | None = None, **more: Any) -> tuple[Any, ...]:
    """The arguments of `blockwise_forward`."""
    q, k = (given[1], given[2]) if tile == mixed_rows else given[:2]
    present = [True] * len(given) + [False] * more.get("absent", 0)
    rest = (more.get("training", False), more.get("sizes", []), None)
    return given, seed, tile, present, q.shape[-2], k.shape[-2], [2], [2, 1], *rest


@pytest.mark.parametrize("wants", [True, False])
def test_opcheck(wants: bool) -> None:
    given = [x.detach().requires_grad_(wants) for x in mixed_operands(5, 6)]
    mask, key_mask = some(5, 6).detach() < 1, some(2, 6).detach() < 1
    torch.library.opcheck(blockwise_forward, call_of([*given, mask, key_mask]))
    torch.library.opcheck(blockwise_forward, call_of(given, absent=2))
    pair = [x.detach().requires_grad_(wants) for x in relative_operands(5, 6)]
    torch.library.opcheck(blockwise_forward, call_of(pair, relative_scores_rows))


def test_the_backward_changes_no_operand_and_returns_new_tensors() -> None:
    """What opcheck would tell of it: that looks at storages, which tensors inside `torch.func.vjp` lack."""
    given, gradient = [x.detach() for x in mixed_operands(5, 6)], torch.randn(2, 3, 5, 5, dtype=torch.float64)
    before = [x.clone() for x in (*given, gradient)]
    found = blockwise_backward(gradient, [0, 1, 2, 3], *call_of(given, absent=2))
    torch.testing.assert_close([*given, gradient], before, rtol=0, atol=0)
    places = [x.untyped_storage().data_ptr() for x in (*given, gradient, *found)]
    assert len(set(places)) == len(places)


def test_opcheck_of_what_is_drawn() -> None:
    given, seed = [some(2, 5, 3), some(2, 6, 3, seed=1)], torch.tensor(7)
    torch.library.opcheck(
        blockwise_forward, call_of(given, drawn_scores_rows, seed, absent=1, training=True, sizes=[1])
    )


@pytest.mark.parametrize("function", [masked, pytest.param(relative, marks=pytest.mark.slow)])
def test_one_graph_for_all_lengths(function: Callable[..., Tensor]) -> None:
    def draw(batch: int, n: int, m: int) -> list[Tensor]:
        return masked_operands(n, m, batch) if function is masked else relative_operands(n, m, (batch,))

    sizes = [(5, 6, 9), (3, 7, 8), (4, 8, 20), (6, 16, 3), (7, 33, 33), (8, 3, 40)]
    for found, given in in_one_graph(function, draw, sizes):
        same(found, function(*given), given[:4])


def test_what_is_drawn_is_drawn_alike_in_a_compiled_backward() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(drawn, fullgraph=True, backend="aot_eager", dynamic=True)
    q, k = some(2, 5, 3), some(2, 6, 3, seed=1)
    torch.manual_seed(1)
    found = compiled(q, k)
    torch.manual_seed(1)
    same(found, drawn(q, k), [q, k])


def test_export_with_free_batch_and_lengths() -> None:
    class Layer(nn.Module):
        def forward(self, *given: Tensor) -> Tensor:
            return masked(*given)

    batch, n, m = (torch.export.Dim(name, min=2, max=4096) for name in ("batch", "n", "m"))
    shapes = [{}, {0: batch, 2: n}, {0: batch, 2: m}, {0: batch, 2: m}, {0: n, 1: m}, {0: batch, 1: m}]
    given = tuple(x.detach() for x in masked_operands(7, 10, 3))
    exported = torch.export.export(Layer(), given, dynamic_shapes=(tuple(shapes),)).module()
    for sizes in [(8, 8, 2), (13, 13, 5), (40, 2, 2), (9, 31, 4)]:
        given = tuple(x.detach() for x in masked_operands(*sizes))
        torch.testing.assert_close(exported(*given), masked(*given), rtol=1e-12, atol=1e-12)


def test_vmap_over_any_operands() -> None:
    P, q, k, v = (x.detach() for x in mixed_operands(5, 6, (4,)))
    many = torch.stack([P, 2 * P, -P, P - 1])
    torch.testing.assert_close(vmap(mixed, (None, 0, 0, 0))(P, q, k, v), mixed(P, q, k, v))
    wanted = torch.stack([mixed(one, q[0], k[0], v[0]) for one in many])
    torch.testing.assert_close(vmap(mixed, (0, None, None, None))(many, q[0], k[0], v[0]), wanted)
    torch.testing.assert_close(vmap(mixed, (2, None, None, None))(many.movedim(0, 2), q[0], k[0], v[0]), wanted)
    wanted = torch.stack([mixed(*one) for one in zip(many, q, k, v, strict=True)])
    torch.testing.assert_close(vmap(mixed)(many, q, k, v), wanted)
    twice = vmap(vmap(mixed, (None, 0, 0, 0)), (0, None, None, None))(many, q, k, v)
    torch.testing.assert_close(twice, torch.stack([mixed(one, q, k, v) for one in many]))


def test_vmap_with_masks_of_each_element() -> None:
    P, q, k, v, mask, key_mask = (x.detach() for x in masked_operands(5, 6))
    found = vmap(masked, (None, 0, 0, 0, None, 0))(P, q, k, v, mask, key_mask)
    torch.testing.assert_close(found, masked(P, q, k, v, mask, key_mask))


def test_vmap_of_what_is_drawn() -> None:
    q, k = torch.randn(3, 5, 3), torch.randn(3, 6, 3)
    found = vmap(drawn, randomness="different")(q[:1].expand(3, -1, -1), k[:1].expand(3, -1, -1))
    assert not torch.equal(found[0], found[1])
    found = vmap(drawn, randomness="same")(q[:1].expand(3, -1, -1), k[:1].expand(3, -1, -1))
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize(("ours", "plain", "operands"), [
    (mixed, mixed_plain, mixed_operands), (relative, relative_plain, relative_operands)
])  # fmt: skip
def test_transforms(ours: Callable[..., Tensor], plain: Callable[..., Tensor], operands: Any) -> None:
    given = tuple(x.detach() for x in operands(3, 4, ()))
    everywhere = tuple(range(4))
    near = {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(jacrev(ours, everywhere)(*given), jacrev(plain, everywhere)(*given), **near)
    first, second = (grad(lambda *x, f=f: f(*x).sin().sum(), everywhere) for f in (ours, plain))
    torch.testing.assert_close(first(*given), second(*given), **near)
    torch.testing.assert_close(jacrev(first, everywhere)(*given), jacrev(second, everywhere)(*given), **near)
    each = tuple(torch.stack([x, x + 1]) for x in given)
    torch.testing.assert_close(vmap(first)(*each), vmap(second)(*each), **near)


def test_checkpoints_compute_the_same_and_draw_alike() -> None:
    q, k = some(2, 5, 3), some(2, 6, 3, seed=1)
    torch.manual_seed(2)
    found = checkpoint(drawn, q, k, use_reentrant=False)
    torch.manual_seed(2)
    same(found, drawn(q, k), [q, k])


def test_deterministic_algorithms() -> None:
    given = masked_operands(5, 6)
    torch.use_deterministic_algorithms(True)
    try:
        same(masked(*given), mixed_plain(*given), given[:4])
    finally:
        torch.use_deterministic_algorithms(False)


def layer() -> Any:
    """A design whose plan has blocks of queries at every length."""
    made = ta.compile(ta.load("transformer_xl", legs={"f": 16, "h": 2, "d": 8}), dtype=torch.float64)
    assert "blockwise(" in made.source
    return made


def test_a_module_is_copied_and_pickled() -> None:
    made, x = layer(), some(2, 5, 16)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        torch.testing.assert_close(other(x), made(x))
        other(x).sum().backward()


def test_weights_of_a_module_are_mapped() -> None:
    made, x = layer(), some(5, 16).detach()
    weights = {name: torch.stack([p.detach(), p.detach() * 2]) for name, p in made.named_parameters()}
    found = vmap(lambda w: functional_call(made, w, (x,)))(weights)
    wanted = [functional_call(made, {name: p[i] for name, p in weights.items()}, (x,)) for i in range(2)]
    torch.testing.assert_close(found, torch.stack(wanted))
