"""Regions on Triton, in the interpreter: lengths, widths, dtypes, masks, what is drawn, operations of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.emit.load import load
from tensornet_attn.runtime.triton.kernels import region_launch, regions
from tests.plan.blockwise_cases import MAPPED, TAKEN, design
from tests.plan.decay_cases import FORGETTING
from tests.triton.regions import F64, draw, on_triton, pair, same, same_in_calls, same_mask_gradients, small_blocks

SMALL = {"f": 12, "h": 4, "g": 2}
QUICK = (
    "a band", "heads mixed before and after", "distances turned", "noise", "near positions",
    "a multiple, averaged over the keys",
)  # fmt: skip


def emitted(module: Any) -> Any:
    """The Python module of a compiled design."""
    return load(module.source, module.plan.graph.name)


@pytest.mark.parametrize("n", [64, pytest.param(130, marks=pytest.mark.slow)])
def test_lengths(n: int) -> None:
    ours, oracle = pair("hard_fish", legs=SMALL)
    same(ours, oracle, [draw(1, n, 12)])


@pytest.mark.parametrize("width", [1, 3, 16, 40, 64])
def test_widths(width: int) -> None:
    ours, oracle = pair("hard_fish", legs=SMALL | {"d": width})
    same(ours, oracle, [draw(2, 17, 12)])


@pytest.mark.parametrize(("d", "e"), [(3, 16), (40, 5)])
def test_values_of_another_width(d: int, e: int) -> None:
    ours, oracle = pair("differential", legs={"f": 12, "h": 2, "d": d, "e": e})
    same(ours, oracle, [draw(2, 17, 12)])


@pytest.mark.parametrize(("n", "m"), [(19, 5), (1, 40)])
@pytest.mark.parametrize("causal", [False, True])
def test_two_lengths(n: int, m: int, causal: bool) -> None:
    cross = ta.load("cross", legs={"f": 12, "h": 2})
    ours, oracle = (ta.compile(cross, b, causal, dtype=F64) for b in ("triton", "reference"))
    oracle.load_state_dict(ours.state_dict())
    same(ours, oracle, [draw(2, n, 12), draw(2, m, 12, seed=1)])


@pytest.mark.parametrize(
    ("more", "n", "m"),
    [
        ({"causal": True}, 70, 70),
        ({"causal": True}, 40, 70),
        ({"box": {"mask": ["window(20, 5)"]}}, 70, 70),
        pytest.param({"causal": True}, 70, 40, marks=pytest.mark.slow),
        pytest.param({"box": {"mask": ["window(20, -1)"]}}, 70, 70, marks=pytest.mark.slow),
        pytest.param({"box": {"mask": ["band(18)"]}}, 50, 70, marks=pytest.mark.slow),
    ],
)
def test_blocks_at_no_edge(more: dict[str, Any], n: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, of which some are seen whole: these take no masks."""
    ours, oracle = pair(design(MAPPED, **more))
    small_blocks(monkeypatch)
    same(ours, oracle, [draw(1, n, 6), draw(1, m, 6, seed=1)])


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float16, 2e-2)])
def test_dtypes(dtype: torch.dtype, atol: float) -> None:
    ours, oracle = pair("hard_fish", dtype, legs=SMALL)
    assert ours(draw(1, 5, 12).to(dtype)).dtype == dtype
    same(ours, oracle, [draw(2, 33, 12)], atol)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the root of zero where nothing is seen
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in TAKEN])
def test_every_kind_of_call(name: str) -> None:
    """Lengths, batch dimensions and masks at random; what has no kernels here runs as before."""
    same_in_calls(TAKEN[name])


def test_most_of_these_have_kernels() -> None:
    assert sum(bool(on_triton(pair(source)[0])) for source in TAKEN.values()) == 37


def test_nothing_to_do() -> None:
    ours, oracle = pair("hard_fish", legs=SMALL)
    for shape in [(0, 5, 12), (2, 0, 12)]:
        same(ours, oracle, [draw(*shape)])


def test_a_mask_may_want_a_gradient() -> None:
    ours, oracle = pair("mhsa", legs={"f": 12, "h": 2})
    same_mask_gradients(ours, oracle, 12)


@pytest.mark.parametrize("name", ["dropout", "noise"])
def test_the_backward_draws_as_the_forward_did(name: str) -> None:
    module = ta.compile(ta.load(TAKEN[name]), "triton", dtype=F64).train()
    inputs = [draw(1, n, 6, seed=n).requires_grad_() for n in (3, 4)]

    def seeded(*inputs: Tensor) -> Tensor:
        torch.manual_seed(3)
        return module(*inputs)

    assert torch.autograd.gradcheck(seeded, inputs, fast_mode=True)
    assert torch.equal(seeded(*inputs), seeded(*inputs))
    assert not torch.equal(seeded(*inputs), module(*inputs))


def test_dropout_keeps_the_share_it_should() -> None:
    design = ta.load("mhsa", legs={"f": 8, "h": 1})
    source = design.to_yaml().replace("softmax: m", "softmax: m\n    dropout: 0.25")
    module = ta.compile(source, "triton", dtype=F64).train()
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.ones_(module.Wv)
    torch.nn.init.ones_(module.Wo)
    mean = module(torch.ones(4, 64, 8, dtype=F64)).mean() / 64  # 8 inputs to each of 8 values
    assert abs(mean - 1) < 0.05


@pytest.mark.slow
def test_gradcheck() -> None:
    module, _ = pair("talking_heads", legs={"f": 4, "g": 2, "h": 2, "e": 2, "d": 2})
    assert torch.autograd.gradcheck(module, [draw(1, 3, 4).requires_grad_()])


def test_a_head_of_many_tiles_is_a_loop_in_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, oracle = pair("thsa", legs={"f": 12, "r": 7, "s": 5})
    code = emitted(ours)
    assert region_launch.REGIONS[code.y_1_tiles].loops == {"rows": "r", "keys": "r"}
    monkeypatch.setattr(region_launch, "BUSY", 6)  # programs: then each has several ranks
    same(ours, oracle, [draw(2, 19, 12)])


def test_operations_of_torch() -> None:
    module, _ = pair("hard_fish", legs=SMALL)
    code = emitted(module)
    shapes = {"Q": (2, 2, 9, 3), "K": (2, 2, 9, 3), "P": (2, 4), "V": (2, 4, 9, 3)}
    given = [draw(*shapes[name]).requires_grad_() for name in region_launch.REGIONS[code.y_1_tiles].operands]
    call = (code.y_1_tiles, [True] * 4, 9, 9, [2], [0.3], False, None)
    torch.library.opcheck(regions.tiles_forward, (given, None, None, None, *call))


def test_compiled_whole() -> None:
    module, _ = pair("hard_fish", legs=SMALL)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (17, 18):
        torch.testing.assert_close(compiled(draw(2, n, 12)), module(draw(2, n, 12)))
    compiled(draw(2, 17, 12)).sum().backward()


def test_transforms() -> None:
    module, _ = pair("mhsa", legs={"f": 12, "h": 2})
    x = draw(3, 2, 5, 12)
    torch.testing.assert_close(torch.func.vmap(module)(x), module(x))
    one = torch.func.grad(lambda x: module(x).square().sum())
    torch.testing.assert_close(torch.func.vmap(one)(x), one(x))


def test_no_second_derivative() -> None:
    module, _ = pair("mhsa", legs={"f": 12, "h": 2})
    x = draw(1, 5, 12).requires_grad_()
    (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError) as caught:
        slope.sum().backward()
    assert str(caught.value) == "Triton kernels have first derivatives only; use backend='torch' for higher ones."


def test_autocast() -> None:
    module, _ = pair("hard_fish", torch.float32, legs=SMALL)
    with torch.autocast("cpu", torch.float16):
        y = module(draw(2, 17, 12).float())
    assert y.dtype == torch.float16
    y.sum().backward()
    assert module.P.grad.dtype == torch.float32


def test_other_sizes_than_the_kernels_were_written_for() -> None:
    module, _ = pair("hard_fish", legs=SMALL)
    made = emitted(module).HardFish(12, 3, 4, 3, dtype=F64)
    with pytest.raises(ValueError) as caught:
        made(draw(1, 5, 12))
    assert str(caught.value) == "'y_1_tiles' is generated for tiles of 2 on leg 'g', which has size 3."


def test_sums_of_gates_are_read_in_float32() -> None:
    """At n = 300 they come to 200: numbers of float16 that are so large lie 1 / 8 apart."""
    design = ta.load(FORGETTING, legs={"f": 16, "h": 2})
    ours, oracle = ta.compile(design, "triton", dtype=torch.float16), ta.compile(design, "reference", dtype=F64)
    oracle.load_state_dict(ours.state_dict())
    found = []
    for module in (ours, oracle):
        x = draw(1, 300, 16).to(module.Wq.dtype).requires_grad_()
        y = module(x)
        found.append([y, *torch.autograd.grad(y.float().square().sum(), [x, *module.parameters()])])
    for one, other in zip(*found, strict=True):
        assert one.dtype == torch.float16
        assert (one.double() - other).norm() < 2e-3 * other.norm()


def test_a_logsumexp_over_heads_of_what_is_minus_infinity_first() -> None:
    scores = {"map": "tanh", "of": {"logsumexp": "r", "of": "Q[n h d] K[m h d] + b[r h] -> r h n m"}}
    source = design(scores, "A[h n m] V[m h d] Wo[h d f] -> n f", legs={"r": "head 3"})
    source["weights"]["b"] = "r h"
    ours, oracle = pair(source)
    with torch.no_grad():
        for module in (ours, oracle):
            module.b[:2, 0] = module.b[0, 1:] = -torch.inf
    same(ours, oracle, [draw(2, 19, 6), draw(2, 23, 6, seed=1)])


def test_what_is_read_under_other_heads_and_under_its_own() -> None:
    """Sums over n1 stand inside of what is read under n1, and n is the leg of queries."""
    source = {
        "tensornet": 1,
        "name": "one",
        "legs": {"n": "query", "m": "key", "f": 6, "n1": "head 3", "h": "head 3", "d": 4},
        "inputs": {"x": "n f"},
        "weights": {"Wq": "f n1 d", "Wk": "f n1 d", "Wv": "f n1 d", "Wo": "n1 d f", "P": "n1 h", "R": "n1 h"},
        "diagram": {
            "Q": "x[n f] Wq[f n1 d] -> n n1 d",
            "K": "x[m f] Wk[f n1 d] -> m n1 d",
            "V": "x[m f] Wv[f n1 d] -> m n1 d",
            "T": {"map": "tanh", "of": "P[n1 h] Q[n n1 d] K[m n1 d] -> h n m"},
            "A": {"softmax": "m", "of": "R[n1 h] T[n1 n m] + T[h n m] -> h n m"},
            "U": {"map": "tanh", "of": "P[n1 h] A[n1 n m] + A[h n m] -> h n m"},
            "y": "U[n1 n m] V[m n1 d] Wo[n1 d f] -> n f",
        },
        "output": "y",
    }
    ours, oracle = pair(source)
    assert "y.p1" in on_triton(ours)
    same(ours, oracle, [draw(2, 19, 6)])


def test_attentions_that_differ_in_names_share_kernels() -> None:
    own = {"A2": {"softmax": "m", "of": "Q2[n h d] K2[m h d] -> h n m"}}
    changed = {"tensornet": 1, "name": "changed", "about": "No scale.", "extends": "differential", "diagram": own}
    for source, count in (("differential", 1), (changed, 2)):
        assert ta.emit_source(ta.load(source), backend="triton").count(" = region(") == count
