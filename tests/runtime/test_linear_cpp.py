"""Linear attention and mixed states in C++ against all scores: values and gradients in float64."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Use
from tensornet_attn.runtime import cpp, linear_cpp, maps
from tensornet_attn.runtime.linear import linear_attentions
from tensornet_attn.runtime.states import mixed_states_and_blockwise
from tensornet_attn.runtime.tiled_linear import LinearKernel
from tensornet_attn.tiles.cpp.linear import linear_source
from tensornet_attn.tiles.cpp.values import in_cpp
from tensornet_attn.tiles.features import Feature
from tensornet_attn.tiles.program import At, Nodes, TileOperand
from tests.agreement import agree, modules, same_outcome
from tests.runtime import test_tiled_states
from tests.runtime.test_tiled_linear import drawn, plain

pytestmark = pytest.mark.skipif(bool(cpp.reason_against_cpp()), reason="there is no C++ compiler")


def feature(name: str | None = None) -> Feature:
    """A map, or features that are given."""
    nodes = Nodes(())
    x = nodes.node("load", (), (), "x", (0, At()))
    mapped = x if name is None else nodes.node("map", (x,), (), name, (name,))
    return Feature(nodes, (TileOperand(Use("x", ()), (), ("row", "column")),), mapped, {}, {})


THREE = [(maps.elu1, maps.elu1, 0.0), (maps.elu1_neg, None, 0.5), (torch.erf, torch.exp, None)]
CPP = linear_cpp.LinearCpp(
    linear_source(
        [(feature("elu1"), feature("elu1")), (feature("elu1_neg"), feature()), (feature("erf"), feature("exp"))]
    )
)
ONE = linear_cpp.LinearCpp(linear_source([(feature("elu1"), feature("elu1"))]))  # the library of the design `linear`
SHAPES = [(2, 3, 7, 5, 4, 3), (1, 1, 1, 1, 1, 1), (2, 2, 130, 300, 3, 16), (1, 5, 257, 3, 8, 8)]  # batch h n m d e


@pytest.fixture(autouse=True, scope="module")
def _libraries() -> None:
    """Those of no design, and, compared with the reference, that of `linear`."""
    cpp.CPP_LOADED[cpp.cpp_key(CPP.text, "float64")] = cpp.cpp_built(CPP.text, "float64", lambda *_: "")
    ta.warm("linear", dtype="float64")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The passes of the C++ that have run in this thread; another one compares new libraries with the reference."""
    run, found, thread = linear_cpp.LinearCpp.run, list[int](), threading.get_ident()

    def counted(self: Any, number: int, *rest: Any, **more: Any) -> None:
        found.extend([number] * (threading.get_ident() == thread))
        run(self, number, *rest, **more)

    monkeypatch.setattr(linear_cpp.LinearCpp, "run", counted)
    return found


def called(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
    return linear_attentions([LinearKernel(q, k, *kernel) for kernel in THREE], v, None, keep, 1, 1, CPP)


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_all_scores(shape: Any, passes: list[int]) -> None:
    torch.manual_seed(0)
    given = drawn(*shape)
    for keep in (None, torch.rand(shape[0], shape[3]) < 0.6):
        agree(called(*given, keep), plain(THREE, *given, keep), given)
    assert passes == 2 * [0, 1, 2, 3]


def test_operands_in_any_memory_order(passes: list[int]) -> None:
    torch.manual_seed(0)
    q, k = (torch.randn(2, 3, 4, rows, dtype=torch.float64, requires_grad=True) for rows in (7, 5))
    v = torch.randn(2, 3, 1, 6, dtype=torch.float64, requires_grad=True)
    other = [q.mT, k.mT, v.expand(2, 3, 5, 6)]
    agree(called(*other), plain(THREE, *other), [q, k, v])
    assert passes == [0, 1, 2, 3]


def test_hidden_keys_and_values_may_be_anything() -> None:
    torch.manual_seed(0)
    q, k, v = (x.detach() for x in drawn(2, 3, 4, 9, 4, 3))
    keep = torch.rand(2, 9) < 0.5
    there = keep[:, None, :, None]
    found = []
    for hidden in (0.0, float("nan"), float("inf")):
        leaves = [q.clone().requires_grad_()]
        leaves += [torch.where(there, x, hidden).requires_grad_() for x in (k, v)]
        y = called(*leaves, keep)
        found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
    assert not any(x.masked_select(~there).any() for x in found[1][2:])


def test_what_is_not_a_number_stays_so() -> None:
    for place in (0, 1):
        given = [x.detach() for x in drawn(1, 2, 3, 4, 4, 3)]
        given[place][:, 0, 1] = float("nan")
        torch.testing.assert_close(called(*given), plain(THREE, *given), equal_nan=True)
        assert called(*given)[:, 0].isnan().any()


def test_decimals_of_maps_have_the_type_of_the_tile() -> None:
    assert in_cpp("maximum_of({x}, 0.0) * 1.5e-3") == "tl::maximum({x}, real(0.0)) * real(1.5e-3)"
    assert in_cpp("x2.5 + 2. + .5 + 1e-3 + 3") == "x2.5 + real(2.) + real(.5) + real(1e-3) + 3"


def test_heads_that_share_a_key_have_no_kernel() -> None:
    text = ta.load("linear").to_yaml().replace("Wk: f h d", "Wk: f d").replace("Wk[f h d] -> m h d", "Wk[f d] -> m d")
    text = text.replace("phiK[m h d]", "phiK[m d]")
    plan = plan_of(build(ta.load(text)), "cpp")
    assert {region.name: region.backend for region in plan.regions}["A.o"] == "torch"


def test_more_threads_than_heads_take_torch(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    given = drawn(2, 3, 7, 5, 4, 3)
    agree(called(*given), plain(THREE, *given), given)
    assert not passes


def test_only_some_gradients_and_second_derivatives() -> None:
    torch.manual_seed(0)
    q, k, v = (x.detach() for x in drawn(1, 2, 3, 4, 2, 2))
    v.requires_grad_()
    pair = [torch.autograd.grad(y.square().sum(), [v]) for y in (called(q, k, v), plain(THREE, q, k, v))]
    torch.testing.assert_close(*pair)
    assert torch.autograd.gradgradcheck(called, [x.requires_grad_() for x in (q, k, v)])


@pytest.mark.parametrize(("batch", "n", "m"), [((2,), 7, 9), ((2, 1), 130, 67)])
def test_mixed_states(batch: tuple[int, ...], n: int, m: int, passes: list[int]) -> None:
    torch.manual_seed(0)
    given, own = test_tiled_states.drawn(batch, n, m), (maps.elu1, maps.elu1)
    for keep in (None, torch.rand(*batch, m) < 0.6):

        def found(*x: Any, keep: Any = keep) -> Tensor:
            added = x[4:] or (None, None)
            both = mixed_states_and_blockwise(*x[:4], None, keep, x[0].ndim - 3, added=added, maps=own, cpp=ONE)
            return torch.cat([both[0], both[1][..., None]], -1)

        for count in (4, 6):
            test_tiled_states.agree(
                found, lambda *x, keep=keep: test_tiled_states.plain(own, *x, keep=keep), given[:count]
            )
    assert {*passes} == {0, 1, 2, 3}


def test_a_design_runs_them_and_says_so(passes: list[int]) -> None:
    torch.manual_seed(0)
    design = ta.load("linear", legs={"f": 32, "h": 4})
    made = ta.compile(design, "cpp", dtype=torch.float64)
    assert [region.backend for region in made.plan.regions if region.name == "A.o"] == ["cpp"]
    own: dict[str, Any] = {"__name__": "own"}
    exec(compile(ta.emit_source(design, backend="cpp"), "own.py", "exec"), own)  # the file that needs only torch
    others = [ta.reference(design).double(), own["Linear"]().double()]
    for other in others:
        other.load_state_dict(made.state_dict())
    x = torch.randn(2, 20, 32, dtype=torch.float64, requires_grad=True)
    key_mask = torch.rand(2, 20) < 0.7
    found = [[y, *torch.autograd.grad(y.sum(), x)] for y in (run(x, key_mask=key_mask) for run in (made, *others))]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
    assert passes == [0, 1, 2, 3]


MIXTURE = """
tensornet: 1
name: mixture
about: Keys that are sums over two legs of maps of shifted keys.
source: none
legs: {n: query, m: key, f: 32, h: head 4, r: 2, s: 3, d: f / h}
inputs:
  x: n f
  memory: {legs: m f, default: x}
weights:
  Wq: f h d
  Wk: f r h d
  Wv: f h d
  Wo: h d f
  shift: {legs: s r h d, init: normal(1)}
  logits: {legs: h r s, init: normal(1)}
  more: {legs: h d, init: normal(1)}
diagram:
  share: {softmax: r, of: logits}
  K: memory[m f] Wk[f r h d] -> m r h d
  mapped: {map: elu1, of: "K[m r h d] + shift[s r h d] -> m s r h d"}
  added: {map: softplus, of: more}
  mixed: 0.5 * share[h r s] mapped[m s r h d] + added[h d] + 0.25 -> m h d
  A:
    normalize: m
    of: x[n f] Wq[f h d] mixed[m h d] -> h n m
  V: memory[m f] Wv[f h d] -> m h d
  y: A[h n m] V[m h d] Wo[h d f] -> n f
output: y
"""


def test_libraries_of_a_process_share_no_members() -> None:
    # a static member of a template has one place in a process, that of the first library, unless it is in a namespace
    # without a name: smlk beside mlk had wrong gradients
    assert ONE.text.index("namespace {  //") < ONE.text.index("template <> struct Feature")


def test_features_of_several_operands(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, made = modules(ta.load(MIXTURE), "cpp")
    x, keep = torch.randn(2, 5, 32, dtype=torch.float64), torch.rand(2, 150) < 0.6
    for key_mask in (None, keep):
        memory = torch.randn(2, 150, 32, dtype=torch.float64, requires_grad=True)
        found = []
        for run in (made, plain):
            y = run(x, memory, key_mask=key_mask)
            found.append([y, *torch.autograd.grad(y.square().sum(), [memory, *run.parameters()])])
        torch.testing.assert_close(*found)
    assert passes == 2 * [0, 1, 2, 3]
    assert torch.autograd.gradgradcheck(lambda x: made(x, x), x[:1, :2].requires_grad_())
    y = made(x, memory, key_mask=keep).square().sum()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)  # the backward has no worker for each thread
    torch.testing.assert_close(torch.autograd.grad(y, [memory, *made.parameters()]), tuple(found[0][1:]))
    monkeypatch.undo()
    pair = torch.rand(5, 150) < 0.6
    torch.testing.assert_close(made(x, memory, mask=pair), plain(x, memory, mask=pair))
    hidden = torch.where(keep[..., None], memory, float("nan"))
    torch.testing.assert_close(made(x, hidden, key_mask=keep), plain(x, memory, key_mask=keep))


def test_other_sizes_of_summed_legs_take_torch(passes: list[int]) -> None:
    own: dict[str, Any] = {"__name__": "own"}
    ta.warm(ta.load(MIXTURE), dtype="float64")
    exec(compile(ta.emit_source(ta.load(MIXTURE), backend="cpp"), "own.py", "exec"), own)
    made, plain = own["Mixture"](r=3).double(), ta.reference(ta.load(MIXTURE, legs={"r": 3})).double()
    made.load_state_dict(plain.state_dict())
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    torch.testing.assert_close(made(x), plain(x))
    assert not passes


def test_a_row_that_all_queries_share_has_the_gradient_of_all(passes: list[int]) -> None:
    design = ta.load("abc", legs={"f": 8, "h": 2, "r": 3})
    plain, made = modules(design, "cpp", False, device_costs="generic")
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    same_outcome(made, plain, [x])
    assert passes
