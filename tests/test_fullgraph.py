"""torch.compile of every design: one whole graph, no recompilation over batch and length.

Of designs that make all calls that sources make, also gradients, masks, state, and Inductor.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tests.designs.cases import CASES, unsteady
from tests.kinds import MODERN, STAND_FOR_THEIR_KIND
from tests.plan.decay_cases import ALONE, FADING, SHARED
from tests.plan.test_cumsum import SUMS
from tests.regions import (
    EACH,
    EVERY,
    SHORT,
    SLICE,
    WIDE,
    WIDE_MASKED,
    design_of,
    draws,
    gradients,
    inputs_of,
    key_mask_of,
    made,
    quick,
    writes,
)

F32, F64 = torch.float32, torch.float64
SHAPES = [(1, 16), (2, 24), (3, 40), (5, 33), (2, 64)]  # (batch, n): the first two may compile


def close(found: object, wanted: object) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def whole(module: nn.Module, backend: str = "eager") -> Callable[..., Tensor]:
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, dynamic=True, backend=backend)


def calls(name: str, shapes: list[tuple[int, int]] = SHAPES, dtype: torch.dtype = F32) -> Iterator[list[Tensor]]:
    """Inputs of these shapes; after the second, a compilation is an error."""
    for i, (batch, n) in enumerate(shapes):
        with torch.compiler.set_stance("default" if i < 2 else "fail_on_recompile"):
            yield [x.requires_grad_() for x in inputs_of(name, batch, n, dtype)]


@quick(EVERY, SHORT)
def test_no_recompilation_over_batch_and_length(name: str, causal: bool | None) -> None:
    module = made(name, causal, dtype=F32)
    compiled = whole(module)
    for xs in calls(name):
        close(compiled(*xs), module(*xs))


@quick(WIDE_MASKED, [("band", True), ("linear", True)])
def test_no_recompilation_with_masks(name: str, causal: bool | None) -> None:
    module = made(name, causal, dtype=F32)
    compiled = whole(module)
    for xs in calls(name):
        masks = {"key_mask": key_mask_of(xs)}
        if CASES[name].masks:
            masks["mask"] = torch.rand(xs[0].shape[1], xs[-1].shape[1]) < 0.6
        close(compiled(*xs, **masks), module(*xs, **masks))


@quick(WIDE, [("band", True), ("epa_rope", False)])
def test_one_graph_and_the_same_gradients(name: str, causal: bool | None) -> None:
    module = made(name, causal, dtype=F64)  # rounding is no matter of graphs
    compiled = whole(module, "aot_eager")
    for xs in calls(name, [(2, 24), (3, 40), (5, 33)], F64):
        y, wanted = compiled(*xs), module(*xs)
        found, plain = [y, *gradients(module, y, xs)], [wanted, *gradients(module, wanted, xs)]
        torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-9)


SCANS = {name: source | {"causal": True} for name, source in SUMS.items()} | {
    f"means over earlier keys, {mapped}": {  # a cumulative sum, and one that it is divided by, as in AFT
        "tensornet": 1,
        "name": "averaged",
        "causal": True,
        "legs": {"n": "query", "m": "key", "a": 4, "a2": "head 4"},
        "inputs": {"x": "n a"},
        "weights": {"Wk": "a a2", "Wv": "a a2", "Wq": "a a2"},
        "constants": {"one": {"legs": "n", "value": "ones"}},
        "diagram": {
            "k": {"map": mapped, "of": "x[m a] Wk[a a2] -> m a2"},
            "v": "x[m a] Wv[a a2] -> m a2",
            "kv": "k[m a2] v[m a2] -> m a2",
            "top": {"sum": "m", "of": "one[n] kv[m a2] -> a2 n m"},
            "total": {"sum": "m", "of": "one[n] k[m a2] -> n m a2"},
            "below": {"map": "square", "of": "total"},
            "gate": {"map": "sigmoid", "of": "x[n a] Wq[a a2] -> n a2"},
            "y": "gate[n a2] top[a2 n] below[n a2] -> n a2",
        },
        "output": "y",
    }
    for mapped in ("softplus", "exp", "elu")
}
SCANS |= FADING | ALONE | SHARED
FEW = ("keys", "features", "means over earlier keys, softplus", "by gates, kept")


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [(n, True) if n in FEW else pytest.param(n, True, marks=pytest.mark.slow) for n in SCANS]
    + [pytest.param(n, None, marks=pytest.mark.slow) for n in FEW],
)
def test_gradients_of_sums_over_earlier_keys(name: str, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    module = ta.compile(SCANS[name], "torch", dtype=torch.float64)
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    inputs = [tensor.legs for tensor in module.plan.graph.of_role("input")]
    leg = module.plan.graph.leg
    for batch, n in [(2, 24), (3, 40), (5, 33)]:
        shapes = [(batch, *(n if leg[name].sequence else leg[name].size for name in legs)) for legs in inputs]
        xs = [0.5 * torch.randn(shape, dtype=torch.float64) for shape in shapes]
        xs = [x.requires_grad_() for x in xs]
        y, wanted = compiled(*xs), module(*xs)
        close([y, *gradients(module, y, xs)], [wanted, *gradients(module, wanted, xs)])


@quick([mode for mode in EACH if mode[0] in ("gfish", "fish_simplex", "mgk_em", "fish", "mish")], [("gfish", True)])
def test_training_makes_no_break(name: str, causal: bool | None) -> None:
    """These draw noise or store a state, so that a training call is another program."""
    module = made(name, causal, dtype=F32).train()
    assert draws(module) or writes(module)
    compiled = whole(module, "aot_eager")
    for xs in calls(name, [(2, 24), (3, 40), (5, 33)]):
        y = compiled(*xs)
        assert all(x.isfinite().all() for x in gradients(module, y, xs))
        assert not draws(module) or not torch.equal(compiled(*xs), y)


@pytest.mark.parametrize("name", ["mhsa", "mgk_em"])
def test_the_checks_of_arguments_are_traced_too(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(made(name, None, dtype=F32), backend="eager", dynamic=True)
    with pytest.raises(Exception, match="has size 7 on leg 'f', which is 12"):
        compiled(torch.randn(2, 5, 7))


def test_a_state_is_updated_in_one_graph_and_backward_reads_the_old_value() -> None:
    plain, module = (made("mgk_em", None, dtype=F32).train() for _ in range(2))
    start = module.state_dict()["pi"].clone()
    (x,) = (x.requires_grad_() for x in inputs_of("mgk_em", 2, 5, F32))
    y, wanted = whole(module, "aot_eager")(x), plain(x)
    close(module.state_dict()["pi"], plain.state_dict()["pi"])
    assert not torch.equal(module.state_dict()["pi"], start)
    close(gradients(module, y, [x]), gradients(plain, wanted, [x]))


@cache
def calls_of(name: str, causal: bool | None) -> set[str]:
    """What the source of a design calls where it computes, with the keywords."""
    tree = ast.parse(ta.emit_source(design_of(name), causal, "torch", package=True))
    (module,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    made_once = ("__init__", "reset_parameters")
    used = [node for node in (*tree.body, *module.body) if getattr(node, "name", "") not in (module.name, *made_once)]
    called = [node for part in used for node in ast.walk(part) if isinstance(node, ast.Call)]
    return {
        f"{getattr(call.func, 'attr', getattr(call.func, 'id', ''))}({sorted(str(word.arg) for word in call.keywords)})"
        for call in called
    }


def test_the_modes_that_are_compiled_make_every_call() -> None:
    """One that is in no source of WIDE: add its design to it, in `tests/regions.py`."""
    found = {mode: calls_of(*mode) for mode in EACH}
    made = set().union(*(found[mode] for mode in WIDE))
    assert {mode: calls - made for mode, calls in found.items() if calls - made} == {}


def test_the_designs_that_stand_for_their_kind_make_every_call() -> None:
    """Of the modern designs, `make test` runs no others; one with a call of its own is added in `tests/kinds.py`."""
    assert STAND_FOR_THEIR_KIND <= MODERN
    others = MODERN - STAND_FOR_THEIR_KIND
    made = set().union(*(calls_of(*mode) for mode in EACH if mode[0] not in others))
    assert {mode: calls_of(*mode) - made for mode in EACH if calls_of(*mode) - made} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "causal"), WIDE)
def test_inductor(name: str, causal: bool | None) -> None:
    """With SLICE also over lengths."""
    torch._dynamo.reset()
    dtype = F64 if unsteady(name) or name == "gla" else F32  # entries of its gradients cancel: 1e-4 of 350 is rounding
    module, compiled = made(name, causal, dtype=dtype), made(name, causal, "inductor", dtype)
    assert compiled.source == module.source
    for n in (16, 33) if (name, causal) in SLICE else (16,):
        xs = [x.requires_grad_() for x in inputs_of(name, 2, n, dtype)]
        y, wanted = compiled(*xs), module(*xs)
        close([y, *gradients(compiled, y, xs)], [wanted, *gradients(module, wanted, xs)])
