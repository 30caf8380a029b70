"""Products that C++ kernels save for the backward: when they do, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tensornet_attn as ta
from tensornet_attn.emit.load import load
from tensornet_attn.runtime import cpp, native
from tests import agreement
from tests.random_call import F64

pytestmark = pytest.mark.skipif(bool(cpp.reason_against_cpp()), reason="there is no C++ compiler")
WIDE = {
    "tensornet": 1,
    "name": "wide",
    "legs": {"n": "query", "m": "key", "h": "head 2", "s": "head 256", "d": 6},
    "inputs": {"x": "n d", "memory": {"legs": "m d", "default": "x"}},
    "weights": {"C": "h s", "Wq": "d s", "Wk": "d s"},
    "diagram": {
        "Q": {"map": "tanh", "of": "x[n d] Wq[d s] -> n s"},
        "K": {"map": "tanh", "of": "memory[m d] Wk[d s] -> m s"},
        "A": {"softmax": "m", "of": "C[h s] Q[n s] K[m s] -> h n m"},
        "y": "A[h n m] memory[m d] -> n h d",
    },
    "output": "y",
}
NEAR = WIDE | {
    "name": "near",
    "noise": {"eps": {"legs": "h n m", "std": 0.5}},
    "diagram": WIDE["diagram"]  # type: ignore[operator]
    | {
        "A": {
            "softmax": "m",
            "mask": "window(90, 0)",
            "dropout": 0.3,
            "of": {"map": "tanh", "of": "0.1 * C[h s] Q[n s] K[m s] + eps[h n m] -> h n m"},
        }
    },
}


def layer(design: Any = WIDE, **options: Any) -> tuple[nn.Module, nn.Module]:
    """A design by C++ and by the reference."""
    plain, made = agreement.modules(design, "cpp", strict=True, **options)
    return made, plain


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def numbers(made: nn.Module, *given: Tensor, **options: Any) -> int:
    """The numbers of the largest tensor that a call saves for its backward."""
    found = [0]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: found.append(x.numel()) or x, lambda x: x):  # type: ignore[func-returns-value]
        made(*given, **options)
    return max(found)


def outcome(made: nn.Module, *given: Tensor, seed: int = 0, **options: Any) -> list[Tensor]:
    """With what is drawn by a seed."""
    torch.manual_seed(seed)
    return agreement.outcome(made, given, **options)


def same(found: list[Tensor], wanted: list[Tensor]) -> None:
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is free."""
    monkeypatch.setattr(native, "free_memory", lambda: 0)


TILE = 64 * 256
SAVED = 2 * 2 * TILE  # of 70 queries and 150 keys: two heads, two blocks of queries, one of keys


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (70, 150), (130, 300)])
def test_results_are_those_of_the_reference(lengths: tuple[int, int], masked: bool) -> None:
    (made, plain), (n, m) = layer(n=70, m=150), lengths
    given, options = [drawn(2, n, 6), drawn(2, m, 6, seed=2)], {}
    if masked:
        keep = drawn(2, n, m, seed=3) < 0.5
        keep[:, 0] = False  # a query that sees nothing
        options = {"mask": keep, "key_mask": drawn(2, m, seed=4) < 1}
    same(outcome(made, *given, **options), outcome(plain, *given, **options))


def test_what_a_mask_hides_reaches_no_gradient() -> None:
    made, _ = layer()
    x, memory = drawn(1, 70, 6), drawn(1, 150, 6, seed=2)
    memory[:, 100:] = 1e30
    seen = (torch.arange(150) < 100)[None]
    found = outcome(made, x, memory, key_mask=seen)
    shorter = outcome(made, x, memory[:, :100])
    same([one[:, :100] if one.shape == memory.shape else one for one in found], shorter)
    assert not found[2][:, 100:].any()


def test_a_call_saves_them_if_memory_allows() -> None:
    made, _ = layer()
    given = [drawn(1, 70, 6).requires_grad_(), drawn(1, 150, 6)]
    assert numbers(made, *given) == SAVED
    assert numbers(made, *given, mask=torch.ones(70, 150, dtype=torch.bool)) == SAVED
    with torch.no_grad():
        assert numbers(made, *given) == 0


def test_without_free_memory_the_backward_computes_them(full: None) -> None:
    made, plain = layer()
    given = [drawn(1, 70, 6), drawn(1, 150, 6)]
    assert numbers(made, *given) < SAVED
    same(outcome(made, *given), outcome(plain, *given))


def test_the_limit_of_the_plan_bounds_them(full: None) -> None:
    """Without reading what is free; a longer call than planned must fit too."""
    within, _ = layer(n=70, m=150, memory="6MB")
    assert numbers(within, drawn(1, 70, 6), drawn(1, 150, 6)) == SAVED
    assert numbers(within, drawn(1, 700, 6), drawn(1, 1500, 6)) < 700 * 1500
    for options in ({"memory": "1.7MB"}, {"linear_memory": True}):
        made, _ = layer(n=70, m=150, **options)
        assert numbers(made, drawn(1, 70, 6), drawn(1, 150, 6)) < SAVED


def test_two_calls_in_flight() -> None:
    made, plain = layer()
    both = []
    for module in (made, plain):
        given = [drawn(1, 70, 6, seed=seed).requires_grad_() for seed in (1, 2)]
        results = [module(x).pow(2).sum() for x in given]
        both.append([torch.autograd.grad(y, x, retain_graph=True)[0] for y, x in zip(results, given, strict=True)])
        both[-1] += [torch.autograd.grad(y, x)[0] for y, x in zip(results, given, strict=True)]
    same(*both)


def test_calls_in_flight_share_a_quarter_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = layer()
    x = drawn(1, 70, 6)
    saved = made(x)  # alone
    size = native.Held.total
    assert size > 0
    monkeypatch.setattr(native, "free_memory", lambda: 4 * size - native.Held.total)
    assert numbers(made, x) < size // 8  # no room for a second call
    saved.sum().backward()
    assert native.Held.total == 0
    assert numbers(made, x) == size // 8


def test_saved_products_of_other_layers_take_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = layer()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(native, "free_memory", lambda: 2**40)
    held = native.Held(2**40, next(iter(native.CPP_REGIONS.values())))  # more than a quarter of all
    threads, plain = [], native.CppCall.workers
    monkeypatch.setattr(native.CppCall, "workers", lambda *given: threads.append(plain(*given)[0]) or plain(*given))
    outcome(made, drawn(1, 70, 6))
    assert native.Held.total == held.size  # nothing is saved
    assert {*threads} == {3}
    del held


def test_limits_of_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8 kB\n",
        "/proc/self/cgroup": "5:cpu:/x\n4:memory,pids:/job/step\n0::/slice/own\n",
        "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "7000\n",
        "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000\n",
        "/sys/fs/cgroup/slice/own/memory.max": "max\n",
        "/sys/fs/cgroup/slice/own/memory.current": "10\n",
        "/sys/fs/cgroup/slice/memory.max": "5000\n",
        "/sys/fs/cgroup/slice/memory.current": "100\n",
    }
    monkeypatch.setattr(native, "system_text", lambda path: files.get(path, ""))
    assert native.free_memory() == 4900
    del files["/sys/fs/cgroup/slice/memory.max"]
    assert native.free_memory() == 6000
    files["/sys/fs/cgroup/memory/job/memory.stat"] = "cache 700\ninactive_file 100\ntotal_inactive_file 500\n"
    assert native.free_memory() == 6500
    del files["/proc/self/cgroup"]
    assert native.free_memory() == 8192
    files.clear()
    assert native.free_memory() is None


def test_several_gradients_at_once() -> None:
    made, plain = layer()
    x, many = drawn(2, 9, 6).requires_grad_(), drawn(3, 2, 9, 2, 6, seed=2)
    pair = []
    for one in (made, plain):
        wanted = [x, *one.parameters()]
        pair.append(torch.autograd.grad(one(x), wanted, many, is_grads_batched=True))
    same(*map(list, pair))


def test_checkpoints_second_derivatives_and_transforms() -> None:
    (made, plain), (x,) = layer(), [drawn(1, 70, 6)]
    found = []
    for module in (made, plain):
        one = x.clone().requires_grad_()
        again = torch.autograd.grad(checkpoint(module, one, use_reentrant=False).pow(2).sum(), one)[0]
        (first,) = torch.autograd.grad(module(one).pow(2).sum(), one, create_graph=True)
        second = torch.autograd.grad(first.pow(2).sum(), [one, *module.parameters()])
        of_func = torch.func.grad(lambda x, module=module: module(x).pow(2).sum())(x)
        found.append([again, *second, of_func])
    same(*found)


def test_bands_and_dropout(full: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways draw the same; blocks that no query sees are neither saved nor read."""
    (made, plain), (x,) = layer(NEAR, causal=True), [drawn(2, 700, 6)]
    same(outcome(made.eval(), x), outcome(plain.eval(), x))
    again = outcome(made.train(), x)
    monkeypatch.setattr(native, "free_memory", lambda: 2**40)
    assert numbers(made, x) > 700 * 700
    same(outcome(made, x), again)
    same(outcome(made.eval(), x), outcome(plain.eval(), x))


def test_in_one_file() -> None:
    (made, _), module = layer(), load(ta.emit_source(WIDE, backend="cpp"), "wide_alone")
    alone = module.Wide(dtype=F64)
    alone.load_state_dict(made.state_dict())
    given = [drawn(1, 70, 6), drawn(1, 150, 6)]
    assert numbers(alone, *given) == SAVED
    same(outcome(alone, *given), outcome(made, *given))


def test_explain_says_what_they_take_and_save() -> None:
    said = ta.explain(WIDE, "cpp", n=1024)
    assert "training saves the products 'A.of', 8.39 MB, if they fit into a quarter of the free memory" in said
    assert "milliseconds to compute them again" in said
    assert "if they fit into the limit" in ta.explain(WIDE, "cpp", n=1024, memory="1GiB")
    for options in ({"linear_memory": True}, {"workload": "prefill"}):
        assert "no tensor of n x m elements" in ta.explain(WIDE, "cpp", **options)  # type: ignore[arg-type]
    assert "training saves" not in ta.explain("talking_heads", "cpp")  # products of width 64 cost less than memory
