"""The delta rule with decay and keys of its own to erase and write: the loop's values and gradients, in float64."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from tensornet_attn.runtime import fading
from tensornet_attn.runtime.gated import gated_delta_rule, gated_delta_state, gated_gradients, gated_reads
from tests.agreement import agree

LENGTHS = [(7, 7), (3, 7), (7, 3), (1, 1), (8, 8), (4, 19), (19, 4)]
KINDS = {  # the channels of the decay, and which keys are separate
    "by head": (1, ""),
    "by channel": (4, ""),
    "without decay": (0, "ew"),
    "erase, without decay": (0, "u"),
    "write, without decay": (0, "w"),
    "erase": (1, "e"),
    "write, by channel": (4, "w"),
    "erase and write, by channel": (4, "ew"),
    "erase undecayed": (1, "u"),
    "erase undecayed and write, by channel": (4, "uw"),
}


@pytest.fixture
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much channels may fade by in a chunk with one boundary: as usual, or nothing, so that blocks have theirs."""
    monkeypatch.setattr(fading, "MILD", request.param)


def mild(test: Callable[..., None]) -> Callable[..., None]:
    """The test at both limits."""
    both = pytest.mark.parametrize("limit", [fading.MILD, -1.0], indirect=True)
    return pytest.mark.usefixtures("limit")(both(test))


def loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    decay: Tensor | None = None,
    erase: Tensor | None = None,
    write: Tensor | None = None,
    undecayed: bool = False,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Key by key, as the equation says."""
    n, m, reads = q.shape[-2], k.shape[-2], []
    erase, write = k if erase is None else erase, k if write is None else write
    decay = torch.zeros_like(k[..., :1]) if decay is None else decay
    batch = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    S = k.new_zeros(*batch, k.shape[-1], v.shape[-1])
    for t in range(min(0, m - n), m):
        if t >= 0:
            faded = decay[..., t, :, None].exp() * S
            gone = (erase[..., t, :, None] * (S if undecayed else faded)).sum(-2, keepdim=True)
            new = write[..., t, :, None] * v[..., t, None, :] - k[..., t, :, None] * gone
            new = faded + rate[..., t, None, None] * new
            S = new if key_mask is None else torch.where(key_mask[..., t, None, None], new, S)
        if t >= m - n:
            reads.append((q[..., t - m + n, :, None] * S).sum(-2))
    return torch.stack(reads, -2) if reads else q.new_zeros(*batch, 0, v.shape[-1])


def drawn(
    kind: str, batch: tuple[int, ...], n: int, m: int, dtype: torch.dtype = torch.float64, strong: float = 2.0
) -> dict[str, Tensor]:
    """Operands of two heads by name."""
    channels, separate = KINDS[kind]
    shapes = {"q": (n, 4), "k": (m, 4), "v": (m, 3), "rate": (m,)}
    shapes |= {"decay": (m, channels)} if channels else {}
    shapes |= {
        name: (m, 4) for name in ("erase", "write") if name[0] in separate or ("u" in separate and name[0] == "e")
    }
    found = {name: torch.randn(*batch, 2, *shape, dtype=dtype) for name, shape in shapes.items()}
    found |= {name: F.normalize(found[name], dim=-1) for name in ("k", "erase", "write") if name in found}
    found["rate"] = found["rate"].sigmoid()
    if channels:
        found["decay"] = -strong * torch.rand_like(found["decay"])
    return {name: x.requires_grad_() for name, x in found.items()}


def options(kind: str) -> dict[str, bool]:
    return {"undecayed": "u" in KINDS[kind][1]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (2, 1, 3)])
@pytest.mark.parametrize(("n", "m"), LENGTHS)
@mild
def test_values_and_gradients(kind: str, batch: tuple[int, ...], n: int, m: int) -> None:
    torch.manual_seed(0)
    for key_mask, chunk in itertools.product((None, torch.rand(*batch, 1, m) < 0.6), (1, 4, 64)):
        given = drawn(kind, batch, n, m)
        wanted = loop(**given, **options(kind), key_mask=key_mask)
        found = gated_delta_rule(**given, **options(kind), key_mask=key_mask, chunk=chunk)
        agree(found, wanted, [*given.values()])


@pytest.mark.parametrize("kind", KINDS)
@mild
def test_a_hundred_keys_at_the_usual_chunk(kind: str) -> None:
    torch.manual_seed(0)
    for m in (63, 64, 130):
        given = drawn(kind, (), m, m)
        agree(gated_delta_rule(**given, **options(kind)), loop(**given, **options(kind)), [*given.values()])


def test_no_key_and_no_query() -> None:
    torch.manual_seed(0)
    for n, m in ((5, 0), (0, 5), (0, 0)):
        given = drawn("by channel", (), n, m)
        found = gated_delta_rule(**given)
        assert found.shape == (2, n, 3)
        assert not found.any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_none(kind: str) -> None:
    given = drawn(kind, (0,), 9, 9)
    found = gated_delta_rule(**given, **options(kind))
    assert found.shape == (0, 2, 9, 3)
    assert all(not g.numel() for g in torch.autograd.grad(found.sum(), [*given.values()]))


def test_what_a_key_mask_hides_may_be_anything() -> None:
    torch.manual_seed(0)
    keep = torch.tensor([True, False, True, True, False, True, True])
    given = drawn("erase and write, by channel", (), 7, 7)
    wanted = gated_delta_rule(**given, key_mask=keep)
    with torch.no_grad():
        given["decay"][:, ~keep] = -torch.inf
        given["decay"][0, 1] = torch.nan
    found = gated_delta_rule(**given, key_mask=keep)
    torch.testing.assert_close(found, wanted)
    both = [torch.autograd.grad(y.sum(), [given[name] for name in ("q", "v", "decay")]) for y in (found, wanted)]
    torch.testing.assert_close(*both)
    assert not both[0][2][:, ~keep].any()


@pytest.mark.parametrize("kind", ["by head", "by channel", "erase undecayed and write, by channel"])
def test_a_state_that_is_forgotten_at_once(kind: str) -> None:
    """Decays of 0, the logarithms of which are infinite, among weak ones."""
    torch.manual_seed(0)
    given = drawn(kind, (), 20, 20, strong=0.1)
    with torch.no_grad():
        given["decay"][:, ::7] = -torch.inf
    wanted = loop(**(given | {"decay": given["decay"].clamp(min=-750)}), **options(kind))
    found = gated_delta_rule(**given, **options(kind), chunk=16)
    agree(found, wanted, [x for name, x in given.items() if name != "decay"])


@pytest.mark.parametrize("strong", [0.01, 5.0, 60.0])
@pytest.mark.parametrize("kind", ["by head", "by channel", "erase undecayed and write, by channel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_sequences_in_low_precision(kind: str, strong: float, dtype: torch.dtype) -> None:
    """No cumulative decay is divided by: sums of 600 positions go down to -36,000."""
    torch.manual_seed(0)
    exact = drawn(kind, (), 600, 600, strong=strong)
    wide = {name: x.detach().to(dtype).double().requires_grad_() for name, x in exact.items()}
    given = {name: x.detach().to(dtype).requires_grad_() for name, x in wide.items()}
    wanted, found = loop(**wide, **options(kind)), gated_delta_rule(**given, **options(kind))
    assert found.dtype == dtype
    weights = torch.randn_like(wanted)
    theirs = torch.autograd.grad((wanted * weights).sum(), [*wide.values()])
    ours = torch.autograd.grad((found * weights.to(dtype)).sum(), [*given.values()])
    chunk = 64 * strong * torch.finfo(torch.float32).eps / 2  # how exact sums of a chunk's decays are
    eps = 2e-5 + chunk if dtype == torch.float32 else 2e-2
    for one, other in zip((found, *ours), (wanted, *theirs), strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one.double(), other, rtol=0, atol=eps * max(1.0, float(other.detach().abs().max())))


@pytest.mark.slow
def test_65536_positions() -> None:
    torch.manual_seed(0)
    given = {name: x.detach().float().requires_grad_() for name, x in drawn("by channel", (), 65536, 65536).items()}
    found = gated_delta_rule(**given)
    found.sum().backward()
    assert found.isfinite().all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in given.values())
    last = {name: x.detach().double()[:, -300:] for name, x in given.items()}  # nothing before counts any more
    torch.testing.assert_close(found[:, -100:].double(), loop(**last)[:, -100:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["by head", "by channel", "erase undecayed and write, by channel"])
def test_behind_what_came_before(kind: str) -> None:
    """The second part of the keys, given what the first has left: values and gradients of the whole."""
    torch.manual_seed(0)
    given = drawn(kind, (2,), 9, 9)
    keep = torch.ones(2, 1, 9, dtype=torch.bool)
    keep[0, :, :6] = False
    for key_mask in (None, keep):
        along = {name: x.ndim - 1 if name == "rate" else x.ndim - 2 for name, x in given.items()}
        early = {name: x.detach().narrow(along[name], 0, 5) for name, x in given.items() if name != "q"}
        late = {name: x.detach().narrow(along[name], 5, 4).requires_grad_() for name, x in given.items()}
        masks = [None if key_mask is None else key_mask[..., part] for part in (slice(5), slice(5, None))]
        past = [torch.zeros(2, 2, 4, 3, dtype=torch.float64)]
        state = gated_delta_state(**early, past=past, **options(kind), key_mask=masks[0], chunk=2)
        found = gated_delta_rule(**late, **options(kind), key_mask=masks[1], chunk=2, past=[state])
        wanted = gated_delta_rule(**given, **options(kind), key_mask=key_mask, chunk=2)[..., 5:, :]
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
        weights = torch.randn_like(found)
        ours = torch.autograd.grad((found * weights).sum(), [*late.values()])
        theirs = torch.autograd.grad((wanted * weights).sum(), [*given.values()])
        theirs = tuple(g.narrow(along[name], 5, 4) for name, g in zip(given, theirs, strict=True))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    wrong = "gated_delta_rule: 4 queries for 3 keys after a state; give no more queries than keys."
    fewer = {name: x.narrow(along[name], 0, 3) for name, x in late.items() if name != "q"}
    with pytest.raises(ValueError, match=re.escape(wrong)):
        gated_delta_rule(late["q"], **fewer, past=[state])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_against_differences(kind: str) -> None:
    torch.manual_seed(0)
    given = drawn(kind, (), 3, 4)
    names = list(given)

    def function(*some: Tensor) -> Tensor:
        return gated_delta_rule(**dict(zip(names, some, strict=True)), **options(kind), chunk=2)

    assert torch.autograd.gradcheck(function, [*given.values()], fast_mode=True)
    assert torch.autograd.gradgradcheck(function, [*given.values()], fast_mode=True)


def test_the_operations_as_torch_checks_them() -> None:
    x = {name: y.detach().requires_grad_() for name, y in drawn("erase and write, by channel", (2,), 6, 6).items()}
    rate = x["rate"].detach()[..., None].requires_grad_()
    for write in (None, x["write"]):
        given = x["q"], x["erase"], x["k"], write, x["v"], rate, x["decay"], None, False, 4
        torch.library.opcheck(gated_reads, given)
        plain = [v.detach() if isinstance(v, Tensor) else v for v in given]
        found = torch.rand(2, 2, 6, 3, dtype=torch.float64), *plain
        torch.library.opcheck(gated_gradients, found, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("kind", ["by channel", "erase and write, by channel"])
def test_vmap_and_grad_of_functions(kind: str) -> None:
    torch.manual_seed(0)
    given = {name: x.detach() for name, x in drawn(kind, (3,), 9, 9).items()}

    def total(q: Tensor, rest: dict[str, Tensor]) -> Tensor:
        return gated_delta_rule(q, **rest, chunk=4).square().sum()

    rest = {name: x for name, x in given.items() if name != "q"}
    each = vmap(grad(total))(given["q"], rest)
    whole = grad(total)(given["q"], rest)
    torch.testing.assert_close(each, whole)
    one = rest | {"v": rest["v"][0]}
    dims = {name: None if name == "v" else 0 for name in rest}
    found = vmap(total, in_dims=(0, dims))(given["q"], one)
    assert found.shape == (3,)


def test_traced_for_any_length() -> None:
    torch.manual_seed(0)
    traced = torch.compile(gated_delta_rule, backend="aot_eager", dynamic=True, fullgraph=True)
    for length in (9, 70, 130):
        given = drawn("by channel", (2,), length, length)
        agree(traced(**given), gated_delta_rule(**given), [*given.values()])


def test_several_steps_at_each_position() -> None:
    """As so many positions, of which the last is read and the first fades."""
    torch.manual_seed(0)
    for undecayed in (False, True):
        given = drawn("erase and write, by channel", (2,), 18, 18)
        keep = torch.rand(2, 1, 6) < 0.7
        decay = given["decay"].detach()[:, :, ::3].clone().requires_grad_()
        once = given | {"q": given["q"][..., ::3, :], "decay": decay}
        spread = torch.zeros_like(given["decay"])
        spread[:, :, ::3] = decay
        every = given | {"q": given["q"][..., ::3, :].repeat_interleave(3, -2), "decay": spread}
        found = gated_delta_rule(**once, undecayed=undecayed, key_mask=keep, chunk=4, steps=3)
        wanted = loop(**every, undecayed=undecayed, key_mask=keep.repeat_interleave(3, -1))[..., 2::3, :]
        leaves = [decay, *(x for name, x in given.items() if name != "decay")]
        agree(found, wanted, leaves)


def test_a_channel_that_fades_little_is_exact_beside_others() -> None:
    """One that falls by 30 in a chunk does not move the boundary of the other."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.rand(1, 32, 1, 2, generator=generator), torch.rand(1, 32, 2, generator=generator)
    q[..., 0] = 0
    fades = torch.stack([torch.linspace(0, -30, 32), torch.linspace(0, -0.1, 32)], -1)[None]
    operands = (q, k, fades, fades)
    products = fading.faded_products(*operands, False)
    exact = fading.faded_products(*(x.double() for x in operands), False)
    torch.testing.assert_close(products, exact.float(), rtol=4 * torch.finfo(torch.float32).eps, atol=0)
