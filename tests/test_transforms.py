"""Compiled modules under torch's transformations: torch.func, checkpoints, deterministic algorithms, autocast.

What cannot be asked of a design is told by a property of its graph, with the reason, in `AGAINST`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils.checkpoint import checkpoint

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.graph import build
from tests.designs.cases import SQUARED, steadied
from tests.regions import (
    EACH,
    MASKED,
    SLICE,
    chooses,
    design_of,
    draws,
    gradients,
    inputs_of,
    key_mask_of,
    kinds,
    made,
    quick,
    writes,
)

F32 = torch.float32
AGAINST: dict[str, dict[str, Callable[[nn.Module], bool]]] = {
    "vmap in training": {"vmap writes to no state that is not mapped": writes},
    "a checkpoint in training": {"computed again, a call reads the state that the first one has stored": writes},
    "autocast": {"a choice of k jumps with rounding": lambda module: chooses(module.plan.graph)},
}
# vmap has no rule of its own for the fused attention on CPUs and says so once; the values are right.
slow_rule = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


def skipped(module: nn.Module, what: str) -> None:
    for reason, holds in AGAINST[what].items():
        if holds(module):
            pytest.skip(reason)


def same(got: object, want: object) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_the_quick_modes_have_every_kind_of_region() -> None:
    found = {mode: kinds(plan_of(build(design_of(mode[0]), mode[1]))) for mode in EACH}
    assert set().union(*(found[mode] for mode in SLICE)) == set().union(*found.values())


@slow_rule
@quick(MASKED)
def test_vmap_with_a_key_mask(name: str, causal: bool | None) -> None:
    """Over masks and inputs, over inputs alone with one mask, and over a dimension before the batch."""
    module, xs = made(name, causal), inputs_of(name, 2, 6)
    keys = key_mask_of(xs)

    def masked(keys: Tensor, *xs: Tensor) -> Tensor:
        return module(*xs, key_mask=keys)

    shared, several = (None, *[0] * len(xs)), [torch.stack([x, x.flip(0), 2 * x]) for x in xs]
    same(vmap(masked)(keys, *xs), masked(keys, *xs))
    same(vmap(masked, shared)(keys[1], *xs), masked(keys[1].expand_as(keys), *xs))
    each = [masked(keys, *(x[i] for x in several)) for i in range(3)]
    same(vmap(masked, shared)(keys, *several), torch.stack(each))


@slow_rule
@quick()
def test_vmap_in_training(name: str, causal: bool | None) -> None:
    """Each element draws noise of its own, where a design has any."""
    module, xs = made(name, causal).train(), inputs_of(name, 1, 6)
    skipped(module, "vmap in training")
    torch.manual_seed(0)  # a draw that drops an expert
    one, other = vmap(module, randomness="different")(*(torch.cat([x, x]) for x in xs))
    if draws(module):
        assert not torch.equal(one, other)
    else:
        same(one, other)


@slow_rule
def test_vmap_refuses_to_write_a_state_that_is_not_mapped() -> None:
    module, xs = made("mgk_em", True).train(), inputs_of("mgk_em", 2, 6)
    with pytest.raises(RuntimeError, match="vmap: inplace arithmetic"):
        vmap(module)(*xs)


@slow_rule
@quick()
def test_weights_of_an_ensemble(name: str, causal: bool | None) -> None:
    """Stacked weights under vmap: values, and gradients of every member."""
    module, members, xs = made(name, causal), [made(name, causal, seed=seed) for seed in (1, 2)], inputs_of(name, 2, 6)
    weights, buffers = stacked([dict(m.named_parameters()) for m in members]), dict(module.named_buffers())

    def loss(weights: dict[str, Tensor], *xs: Tensor) -> tuple[Tensor, Tensor]:
        y = functional_call(module, weights | buffers, xs)
        return y.square().sum(), y

    over = (0, *[None] * len(xs))
    found, values = vmap(grad(loss, has_aux=True), over)(weights, *xs)
    for i, member in enumerate(members):
        member.load_state_dict(buffers, strict=False)
        y = member(*xs)
        same(values[i], y)
        same([found[key][i] for key, _ in moved(member)], gradients(member, y, []))


def stacked(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([state[key].detach() for state in states]) for key in states[0]}


def moved(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The weights that are trained."""
    return ((key, p) for key, p in module.named_parameters() if p.requires_grad)


@slow_rule
@quick()
def test_gradients_of_every_example(name: str, causal: bool | None) -> None:
    module, xs = made(name, causal), inputs_of(name, 2, 6)
    weights, buffers = dict(module.named_parameters()), dict(module.named_buffers())

    def loss(weights: dict[str, Tensor], *xs: Tensor) -> Tensor:
        return functional_call(module, weights | buffers, xs).square().sum()

    each = vmap(grad(loss), (None, *[0] * len(xs)))(weights, *xs)
    for i in range(2):
        alone = gradients(module, module(*(x[i] for x in xs)), [])
        same([each[key][i] for key, _ in moved(module)], alone)


@slow_rule
@quick()
def test_the_jacobian(name: str, causal: bool | None) -> None:
    module, oracle, xs = made(name, causal), made(name, causal, "reference"), [x[0] for x in inputs_of(name, 1, 4)]
    wanted = torch.autograd.functional.jacobian(oracle, tuple(xs))
    same(jacrev(module, tuple(range(len(xs))))(*xs), wanted)


@quick()
def test_a_checkpoint_in_training(name: str, causal: bool | None) -> None:
    """Computed again, noise is drawn as it was."""
    module, xs = made(name, causal).train(), [x.requires_grad_() for x in inputs_of(name, 2, 6)]
    skipped(module, "a checkpoint in training")
    assert_checkpoint_is_exact(module, xs)


def assert_checkpoint_is_exact(module: nn.Module, xs: list[Tensor]) -> None:
    torch.manual_seed(5)
    y = module(*xs)
    wanted = gradients(module, y, xs)
    torch.manual_seed(5)
    z = checkpoint(module, *xs, use_reentrant=False)
    torch.manual_seed(99)
    same(z, y)
    same(gradients(module, z, xs), wanted)


DROPPED = {
    "one fused call": ("mhsa", {"softmax": "m", "of": "Q[n h d] K[m h d] -> h n m"}),
    "a band": ("mhsa", {"softmax": "m", "mask": ["band(2)"], "of": "Q[n h d] K[m h d] -> h n m"}),
    "blocks of queries": ("mhsa", {"softmax": "m", "of": {"map": "tanh", "of": "Q[n h d] K[m h d] -> h n m"}}),
}


@pytest.mark.parametrize("name", DROPPED)
def test_a_checkpoint_of_dropout(name: str) -> None:
    parent, box = DROPPED[name]
    design = {"tensornet": 1, "name": "dropped", "extends": parent, "diagram": {"A": box | {"dropout": 0.5}}}
    torch.manual_seed(0)
    module = ta.compile(ta.load(design, legs={"f": 12, "h": 3}), dtype=torch.float64).train()
    x = inputs_of("mhsa", 2, 9)[0].requires_grad_()
    assert not torch.equal(module(x), module(x))
    assert_checkpoint_is_exact(module, [x])


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@quick()
def test_deterministic_algorithms(name: str, causal: bool | None) -> None:
    module, xs = made(name, causal), [x.requires_grad_() for x in inputs_of(name, 2, 6)]
    y = module(*xs)
    wanted = [y, *gradients(module, y, xs)]
    with deterministic():
        runs = [[y, *gradients(module, y, xs)] for y in (module(*xs), module(*xs))]
    same(runs[0], wanted)
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@quick()
def test_autocast(name: str, causal: bool | None) -> None:
    """Weights and gradients stay float32; errors are at most twice those of the reference under autocast.

    Where one draw says otherwise, a row near zero may have been divided by its size: the median of many decides.
    """
    if not all(share <= 1 for share in shares_of_errors(name, causal)):  # or not a number
        shares = torch.tensor([shares_of_errors(name, causal, seed) for seed in range(15)])
        assert shares.median(0).values.max() <= 1


def shares_of_errors(name: str, causal: bool | None, seed: int = 0) -> list[float]:
    """The largest error of the output and of each gradient under autocast, as a share of what is allowed.

    A gradient that is zero but for rounding is measured by the largest one.
    """
    oracle, module = made(name, causal, "reference", F32, seed), made(name, causal, dtype=F32, seed=seed)
    xs = [x.requires_grad_() for x in inputs_of(name, 8, 12, F32, seed + 1)]
    if name in SQUARED:
        xs = steadied(name, oracle, xs)
        module.load_state_dict(oracle.state_dict())
    y = oracle(*xs)
    wanted = [y, *gradients(oracle, y, xs)]
    plain, ours = ([z, *gradients(m, z.float(), xs)] for m, z in ((m, low(m, xs)) for m in (oracle, module)))
    assert [x.dtype for x in ours[1:]] == [F32] * (len(ours) - 1)
    assert all(x.isfinite().all() for x in ours)
    skipped(module, "autocast")
    eps = torch.finfo(torch.bfloat16).eps
    largest, shares = max(want.abs().max() for want in wanted[1:]), []
    for one, other, want in zip(ours, plain, wanted, strict=True):
        nothing = want.abs().max() <= 1e-6 * largest  # as of a bias of keys
        scale = largest if nothing else max(want.abs().max(), eps * largest)
        bound = 2 * ((other - want).abs().max() + eps * scale)
        shares.append(((one - want).abs().max() / bound).item())
    return shares


def low(module: nn.Module, xs: list[Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return module(*xs)
