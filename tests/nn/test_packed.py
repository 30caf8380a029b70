"""Packed calls: each document is computed as by a call of its own, outputs and gradients, for every shipped design."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.nn.documents import grouped
from tensornet_attn.nn.module import CompiledDesign
from tests.designs.cases import CASES, compiled, unsteady
from tests.nn.test_cache import AGAINST_MEMORY
from tests.random_call import F64, Called, assert_same
from tests.random_call import results as results_of
from tests.refusals import refusal
from tests.regions import WIDE, quick

LENGTHS = (3, 1, 4, 4, 2, 5, 3)
DESIGNS = [(name, causal) for name, case in CASES.items() for causal in case.causal]
SOME = [("mhsa", False), ("mhsa_rope", True), ("cross", False), ("fmm_fast_weight1", True), ("sigma_moe", None)]
COUNTING = {  # which no padded call computes
    "fmm_lra_release": "'far1.of' has the length 'm' in a number",
    "gau": "'R.of' has the length 'm' in a number",
    "sigmoid_attention": "'A.of.of' has the length 'm' in a number",
}
# No padding before a document: turned queries and keys that are not told from others, a convolution of the queries.
PLACED = ("tpa", "lfm2")


def offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def made(name: str, causal: bool | None = None, backend: str = "torch") -> CompiledDesign:
    module = compiled(name, backend, causal)
    if unsteady(name):
        module.load_state_dict({key: value.abs() for key, value in module.state_dict().items()})
    return module


def rows_of(module: CompiledDesign, lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
    """Inputs of this many documents in one row; those of keys of their own have other lengths."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for name, shape, default in module._signature.inputs:
        if default is None:
            own = key_lengths(lengths) if name == "memory" else lengths
            sizes = [sum(own) if size is None else size for _, size in shape]
            x = torch.randn(1, *sizes, generator=generator, dtype=F64)
            found.append(x.abs() if unsteady(module.design.name) else x)
    return found


def key_lengths(lengths: Sequence[int]) -> list[int]:
    return [length % 3 + 2 for length in lengths]


def words(module: CompiledDesign, lengths: Sequence[int]) -> dict[str, Tensor]:
    if len(module._signature.inputs) > 1 and module._signature.inputs[1][2] is None:
        return {"cu_seqlens_q": offsets(lengths), "cu_seqlens_k": offsets(key_lengths(lengths))}
    return {"cu_seqlens": offsets(lengths)}


def one_by_one(module: CompiledDesign, lengths: Sequence[int], **options: Tensor) -> Callable[..., Tensor]:
    """The module called with each document by itself."""
    graph = module.plan.graph
    axis = graph.legs_of(graph.output).index(str(graph.query)) + 1

    def call(*inputs: Tensor) -> Tensor:
        sides = [lengths, key_lengths(lengths)][: len(inputs)]
        documents = zip(*(x.split([*own], 1) for x, own in zip(inputs, sides, strict=True)), strict=True)
        masks = {name: value.split([*lengths], 1) for name, value in options.items()}
        found = [
            module(*own, **{name: mask[place] for name, mask in masks.items()}) for place, own in enumerate(documents)
        ]
        return torch.cat(found, axis)

    return call


def compare(module: CompiledDesign, lengths: Sequence[int] = LENGTHS, dear: bool = False, **options: Tensor) -> None:
    """Outputs and the gradients of inputs and weights, packed and one by one."""
    inputs = rows_of(module, lengths)
    wanted = results_of(Called(module, one_by_one(module, lengths, **options)), inputs, {})
    with padded(dear):
        assert_same(results_of(module, inputs, words(module, lengths) | options), wanted)


@contextmanager
def padded(dear: bool) -> Iterator[None]:
    """Documents of several lengths in one call, as at small sizes, or one call for each length: padding is dear."""
    with patch("tensornet_attn.nn.packed.CALL", 1e-15 if dear else 1.0):
        yield


@pytest.mark.slow
@pytest.mark.parametrize(("name", "causal"), DESIGNS)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_packed_is_one_call_a_document(name: str, causal: bool | None, backend: str) -> None:
    compare(made(name, causal, backend), dear=backend == "torch")


@pytest.mark.parametrize("dear", [False, True])
@pytest.mark.parametrize(("name", "causal"), SOME)
def test_packed_is_one_call_a_document_in_some(name: str, causal: bool | None, dear: bool) -> None:
    compare(made(name, causal), dear=dear)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile looks at inputs that are views
@pytest.mark.parametrize(("name", "causal"), [("mhsa_rope", True), ("linear", False), ("fmm_fast_weight1", True)])
def test_packed_is_one_call_a_document_for_inductor(name: str, causal: bool) -> None:
    compare(made(name, causal, "inductor"))


@pytest.mark.parametrize(("name", "causal"), [("thsa", True), ("linear", True), ("mgk", False)])
@pytest.mark.parametrize("lengths", [(6,), (4, 4, 4), (1, 1, 2), (7, 2, 7, 2, 7), (2, 7, 2)])
def test_documents_in_every_order(name: str, causal: bool, lengths: tuple[int, ...]) -> None:
    for dear in (False, True):
        compare(made(name, causal), lengths, dear)


def test_a_key_mask_hides_positions_of_documents() -> None:
    shown = torch.rand(1, sum(LENGTHS), generator=torch.Generator().manual_seed(3)) < 0.6
    for causal in (False, True):
        for dear in (False, True):
            compare(made("mhsa", causal), dear=dear, key_mask=shown)
            compare(made("linear", causal), dear=dear, key_mask=shown)


def test_a_row_needs_no_batch_dimension() -> None:
    module = made("mhsa_rope", True)
    (x,) = rows_of(module, LENGTHS)
    y = module(x[0], cu_seqlens=offsets(LENGTHS))
    assert torch.equal(y, module(x, cu_seqlens=offsets(LENGTHS))[0])


def test_positions_that_restart_are_offsets() -> None:
    module = made("mhsa_rope", True)
    (x,) = rows_of(module, LENGTHS)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    wanted = module(x, cu_seqlens=offsets(LENGTHS))
    assert torch.equal(module(x, position_ids=positions[None]), wanted)
    assert torch.equal(module(x, position_ids=positions, cu_seqlens=offsets(LENGTHS).long()), wanted)


@pytest.mark.parametrize("dear", [False, True])
def test_inputs_of_pairs_are_read_within_documents(dear: bool) -> None:
    source = {
        "tensornet": 1,
        "name": "biased",
        "extends": "mhsa",
        "legs": {"f": 6, "h": "head 2"},
        "inputs": {"memory": None, "bias": "n m"},
        "diagram": {
            "K": "x[m f] Wk[f h d] -> m h d",
            "V": "x[m f] Wv[f h d] -> m h d",
            "A": {"softmax": "m", "of": "(d ** -0.5) * Q[n h d] K[m h d] + bias[n m] -> h n m"},
        },
    }
    module = ta.compile(source, causal=True, dtype=F64)
    x, bias = torch.randn(1, 9, 6, dtype=F64), torch.randn(9, 9, dtype=F64)
    inside = torch.block_diag(*(torch.ones(length, length) for length in (3, 2, 4))).bool()
    with padded(dear):
        y = module(x, torch.where(inside, bias, torch.nan), cu_seqlens=offsets((3, 2, 4)))
    spans = ((0, 3), (3, 5), (5, 9))
    wanted = torch.cat([module(x[:, a:b], bias[a:b, a:b]) for a, b in spans], 1)
    torch.testing.assert_close(y, wanted)


def test_nothing_of_one_document_reaches_another() -> None:
    for causal in (False, True):
        module = made("mhsa", causal)
        (x,) = rows_of(module, (3, 4, 2))
        x.requires_grad_()
        module(x, cu_seqlens=offsets((3, 4, 2)))[:, :3].sum().backward()
        assert x.grad is not None
        assert x.grad[:, :3].all()
        assert not x.grad[:, 3:].any()
        with torch.no_grad():
            x[:, 3:7] = torch.nan
        y = module(x, cu_seqlens=offsets((3, 4, 2)))
        assert y.isnan().any(-1).tolist() == [[False] * 3 + [True] * 4 + [False] * 2]


def test_lengths_that_are_near_share_a_call() -> None:
    def work(length: int) -> float:
        return length / 10

    assert [group.documents for group in grouped([(30, 30), (25, 25), (30, 30)], lambda: work)] == [(0, 1, 2)]
    far = grouped([(30, 30), (25, 25), (10, 10), (24, 24), (24, 24)], lambda: work)
    assert [(group.documents, group.queries) for group in far] == [((0, 1), 30), ((2,), 10), ((3, 4), 24)]
    assert len(grouped([(30, 30), (25, 26)], lambda: work)) == 2  # another distance of queries and keys
    assert len(grouped([(30, 30), (25, 25)], None)) == 2


def test_calls_are_fewer_than_documents() -> None:
    module = made("mhsa", False)
    (x,) = rows_of(module, LENGTHS * 3)
    run, calls = module._run, []
    module._run = lambda own, given: calls.append(given) or run(own, given)
    with padded(False):
        module(x, cu_seqlens=offsets(LENGTHS * 3))
    assert len(calls) == 1
    module = made("fmm_lra_release", False)  # which counts lengths: no padding
    run, calls = module._run, []
    module._run = lambda own, given: calls.append(given) or run(own, given)
    module(x, cu_seqlens=offsets(LENGTHS * 3))
    assert len(calls) == len({*LENGTHS})


@pytest.mark.parametrize("dear", [False, True])
def test_states_take_the_mean_over_documents(dear: bool) -> None:
    for lengths in ((4, 4, 4), (4, 2, 4)):
        module = compiled("mgk_em", "torch", True).train()
        before = {name: value.clone() for name, value in module.named_buffers()}
        (x,) = rows_of(module, lengths)
        with padded(dear):
            module(x, cu_seqlens=offsets(lengths)).sum().backward()
        packed = {name: value.clone() for name, value in module.named_buffers()}
        sums = {name: torch.zeros_like(value) for name, value in before.items()}
        for document in x.split(lengths, 1):
            module.load_state_dict(before, strict=False)
            module(document)
            for name, value in module.named_buffers():
                sums[name] += value / len(lengths)
        assert packed
        assert packed.keys() == sums.keys()
        for name, value in packed.items():
            torch.testing.assert_close(value, sums[name])


@pytest.mark.parametrize("dear", [False, True])
def test_losses_are_means_over_documents(dear: bool) -> None:
    module = compiled("moa_regularised", "torch", True).train()
    (x,) = rows_of(module, LENGTHS)
    with padded(dear):
        y, losses = module(x, cu_seqlens=offsets(LENGTHS), losses=True)
    alone = [module(document, losses=True) for document in x.split(LENGTHS, 1)]
    torch.testing.assert_close(y, torch.cat([own for own, _ in alone], 1))
    for name, value in losses.items():
        torch.testing.assert_close(value, torch.stack([own[name] for _, own in alone]).mean())


def test_dropout_and_noise_are_drawn_in_training() -> None:
    for name in ("sigma_moe_regularised", "fish"):
        module = compiled(name, "torch", None).train()
        (x,) = rows_of(module, LENGTHS)
        y = module(x, cu_seqlens=offsets(LENGTHS))
        y.sum().backward()
        assert y.isfinite().all()
        assert y.shape == x.shape


def traced(name: str, causal: bool | None) -> None:
    module = made(name, causal)
    torch._dynamo.reset()
    whole = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for place, lengths in enumerate([(3, 1, 4), (3, 1, 4, 4, 2, 5, 3), (2, 5, 4, 3), (6, 6)]):
        inputs = rows_of(module, lengths)
        with torch.compiler.set_stance("default" if place < 2 else "fail_on_recompile"):
            y = whole(*inputs, **words(module, lengths), max_seqlen=6)
        torch.testing.assert_close(y, module(*inputs, **words(module, lengths)), rtol=1e-8, atol=1e-8)


@quick([mode for mode in WIDE if mode[0] not in COUNTING])
def test_one_graph_for_all_offsets(name: str, causal: bool | None) -> None:
    traced(name, causal)


def test_one_graph_for_all_offsets_of_some() -> None:
    traced("mhsa_rope", True)
    traced("mhsa", False)


def test_gradients_of_a_traced_call() -> None:
    module = made("mhsa_rope", False)
    torch._dynamo.reset()
    whole = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    inputs, given = rows_of(module, LENGTHS), words(module, LENGTHS)
    wanted = results_of(module, inputs, given)
    called = Called(module, lambda *xs: whole(*xs, **given, max_seqlen=8))
    assert_same(results_of(called, inputs, {}), wanted)


def test_exported_for_all_offsets() -> None:
    module = made("mhsa", True).float()
    x, lengths = torch.randn(1, 12, 12), (3, 4, 5)
    rows, documents = torch.export.Dim("rows", min=2, max=4096), torch.export.Dim("documents", min=3, max=512)
    shapes = {"x": {1: rows}, "cu_seqlens": {0: documents}, "max_seqlen": None}
    given = {"cu_seqlens": offsets(lengths), "max_seqlen": 8}
    program = torch.export.export(module, (x,), given, dynamic_shapes=shapes, strict=False).module()
    for other in ((8, 1, 2), (5, 5, 5, 5, 5)):
        x = torch.randn(1, sum(other), 12)
        y = program(x, cu_seqlens=offsets(other), max_seqlen=8)
        torch.testing.assert_close(y, module(x, cu_seqlens=offsets(other)))


def test_wrong_offsets_end_a_traced_call() -> None:
    module = made("mhsa", True)
    torch._dynamo.reset()
    whole = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    (x,) = rows_of(module, (3, 4))
    for wrong in ([0, 4, 3, 7], [1, 3, 5, 7], [0, 3, 5, 6], [0, 1, 2, 7]):
        with pytest.raises(RuntimeError, match="'cu_seqlens' decreases, does not run from 0"):
            whole(x, cu_seqlens=torch.tensor(wrong), max_seqlen=4)


def continued(name: str, first: Sequence[int], then: Sequence[int], packed: bool) -> None:
    """Documents packed into a cache, and a second chunk of each, packed again or as a batch."""
    against = name in AGAINST_MEMORY
    module = made(name, None if CASES[name].causal == (None,) else not against)
    (_, shape, _), *more = module._signature.inputs
    draw = torch.Generator().manual_seed(0)

    def document(length: int, width: int | None) -> Tensor:
        return torch.randn(1, length, width or 0, generator=draw, dtype=F64).abs()

    documents = [document(a + b, shape[-1][1]) for a, b in zip(first, then, strict=True)]
    others = [[document(n, more[0][1][-1][1])] if against else [] for n in (2, 5, 3)]
    wanted = [module(x, *other) for x, other in zip(documents, others, strict=True)]
    starts, ends = zip(*((x[:, :a], x[:, a:]) for x, a in zip(documents, first, strict=True)), strict=True)
    with torch.no_grad():
        cache = module.new_cache()
        memory = [torch.cat([other for (other,) in others], 1)] if against else []
        own = {"cu_seqlens_k": offsets((2, 5, 3))} if against else {}
        y = module(torch.cat(starts, 1), *memory, cu_seqlens=offsets(first), **own, cache=cache)
        torch.testing.assert_close(y, torch.cat([w[:, :a] for w, a in zip(wanted, first, strict=True)], 1))
        rest = [w[:, a:] for w, a in zip(wanted, first, strict=True)]
        if packed:
            y = module(torch.cat(ends, 1), cu_seqlens=offsets(then), cache=cache)
            torch.testing.assert_close(y, torch.cat(rest, 1))
        else:
            torch.testing.assert_close(module(torch.cat(ends), cache=cache), torch.cat(rest))


CACHED = [name for name in CASES if name not in COUNTING]  # neither has these a cache


@pytest.mark.slow
@pytest.mark.parametrize("name", CACHED)
def test_documents_are_rows_of_a_cache(name: str) -> None:
    first = (3, 3, 3) if name in PLACED else (3, 1, 4)
    continued(name, first, (1, 1, 1), packed=False)
    continued(name, first, (2, 2, 2), packed=True)
    continued(name, (2, 2, 2), (3, 3, 3), packed=False)


@pytest.mark.parametrize("name", ["mhsa_rope", "cross", "linear", "band", "fmm_fast_weight1", "mla"])
def test_documents_are_rows_of_a_cache_in_some(name: str) -> None:
    test_documents_are_rows_of_a_cache(name)


def test_chunks_of_several_lengths_go_on_where_distances_do_not_count() -> None:
    for name in ("mhsa", "linear", "mla"):
        continued(name, (3, 1, 4), (1, 3, 2), packed=True)
    wanted = (
        "mhsa_rope: a cache pads documents to one length, and 'Q' compares the positions of queries and "
        "keys: give documents of equal length, or use one cache per document."
    )
    assert refusal(continued, "mhsa_rope", (3, 1, 4), (1, 3, 2), packed=True) == wanted


def test_a_cache_carries_what_is_padding() -> None:
    module = made("mhsa", True)
    (x,) = rows_of(module, (2, 4))
    step = torch.randn(2, 1, 12, dtype=F64)
    with torch.no_grad():
        cache = module.new_cache()
        module(x, cu_seqlens=offsets((2, 4)), cache=cache)
        again = module.new_cache()
        again.load_state_dict(cache.state_dict())
        turned = torch.tensor([1, 0])
        cache.reorder(turned)
        y = module(step, cache=again)
        torch.testing.assert_close(module(step[turned], cache=cache), y[turned])
        again.crop(4)
        torch.testing.assert_close(module(step, cache=again), y)
        short = module(torch.cat([x[:, :2], step[:1]], 1))
        torch.testing.assert_close(y[:1], short[:, -1:])
        again.reset()
        torch.testing.assert_close(module(step, cache=again), module(step))


def refused(name: str, sentence: str, *inputs: Tensor, **options: Any) -> None:
    wanted = f"{name}: {sentence}"
    assert refusal(lambda: made(name, None if CASES[name].causal == (None,) else False)(*inputs, **options)) == wanted


def test_offsets_that_cannot_be() -> None:
    x = torch.randn(1, 9, 12, dtype=F64)

    def wrong(sentence: str, given: Any, **more: Any) -> None:
        refused("mhsa", sentence, x, cu_seqlens=given, **more)

    def of(*numbers: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    wrong("'cu_seqlens' decreases: 4 at index 2 follows 6.", of(0, 6, 4, 9))
    wrong("'cu_seqlens' begins at 1; it must begin at 0.", of(1, 4, 9))
    wrong("'cu_seqlens' ends at 8, but there are 9 positions.", of(0, 4, 8))
    wrong("'cu_seqlens' is torch.float32; give torch.int32.", of(0, 9).float())
    wrong("'cu_seqlens' is on meta, but the inputs are on cpu.", of(0, 9).to("meta"))
    wrong("'cu_seqlens' has shape [1, 2]; give [documents + 1], at least 2.", of(0, 9)[None])
    wrong("'cu_seqlens' is a list; give a tensor, torch.int32 [documents + 1].", [0, 9])
    wrong("max_seqlen is 4, but the longest document has 5 positions.", of(0, 4, 9), max_seqlen=4)
    wrong("max_seqlen is a float; give an int, the length of the longest document.", of(0, 4, 9), max_seqlen=5.0)
    wrong("'cu_seqlens' and 'cu_seqlens_q' are both given: leave one out.", of(0, 9), cu_seqlens_q=of(0, 9))
    wrong("queries and keys are the same positions, but 'cu_seqlens' differs from 'cu_seqlens_k'.", of(0, 4, 9),
          cu_seqlens_k=of(0, 5, 9))  # fmt: skip
    wrong("'cu_seqlens' has 2 documents, 'cu_seqlens_k' has 1.", of(0, 4, 9), cu_seqlens_k=of(0, 9))


def test_positions_that_cannot_be() -> None:
    x, given = torch.randn(1, 5, 12, dtype=F64), offsets((2, 3))
    where = "'position_ids' is 2 at position 2, but must be 0: see 'cu_seqlens'."
    refused("mhsa", where, x, cu_seqlens=given, position_ids=torch.arange(5)[None])
    where = "'position_ids' is 3 at position 0, but must be 0: they count from 0 in each document."
    refused("mhsa", where, x, position_ids=torch.arange(3, 8)[None])
    refused("mhsa", "'position_ids' has shape [1, 4]; give [1, 5].", x, position_ids=torch.arange(4)[None])
    refused("mhsa", "'position_ids' is torch.float32; give integers.", x, position_ids=torch.arange(5.0)[None])


def test_what_no_packed_call_takes() -> None:
    x, given = torch.randn(1, 5, 12, dtype=F64), offsets((2, 3))
    mask = "a call with cu_seqlens accepts no 'mask': documents are already separated; hide keys with 'key_mask'."
    refused("mhsa", mask, x, cu_seqlens=given, mask=torch.ones(5, 5, dtype=torch.bool))
    noise = "a call with cu_seqlens accepts no 'noise': each document draws its own."
    refused("mhsa", noise, x, cu_seqlens=given, noise={})
    batch = "the batch is [2] with cu_seqlens: give all sequences as one row, [1, n, f]."
    refused("mhsa", batch, torch.randn(2, 5, 12, dtype=F64), cu_seqlens=given)
    refused("mhsa", "max_seqlen is given without 'cu_seqlens': give the offsets of the documents.", x, max_seqlen=3)
    keys = "keys are an input of their own: give their offsets, 'cu_seqlens_k'."
    refused("cross", keys, x, torch.randn(1, 7, 12, dtype=F64), cu_seqlens=given)
    refused("cross", keys, x, x, cu_seqlens_q=given)


def test_an_output_of_pairs_is_refused() -> None:
    pairs = ta.Design(
        tensornet=1, name="pairs", legs={"n": "query", "m": "key", "f": 3}, inputs={"x": "n f"},
        diagram={"S": "x[n f] x[m f] -> n m"}, output="S",
    )  # fmt: skip
    wanted = (
        "pairs: the output 'S' has a query leg and a key leg, and a call with cu_seqlens pairs positions within each "
        "document only: call the documents one by one."
    )
    assert refusal(lambda: ta.compile(pairs)(torch.randn(1, 5, 3), cu_seqlens=offsets((2, 3)))) == wanted


def test_an_output_without_rows_of_documents_is_refused() -> None:
    """What losses alone read is an input too."""
    source = ta.Design(
        tensornet=1, name="placed", legs={"n": "query 9", "f": 4}, inputs={"x": "n f"}, weights={"P": "n f"},
        diagram={"l": {"mean": ["n", "f"], "of": "x"}, "y": "2 * P[n f] -> n f"}, losses={"l": 1}, output="y",
    )  # fmt: skip
    wanted = (
        "placed: the output 'y' depends on no input, so no document has rows of its own: call it without cu_seqlens."
    )
    for options in ({}, {"losses": True}):
        assert refusal(ta.compile(source), torch.randn(1, 5, 4), cu_seqlens=offsets((2, 3)), **options) == wanted


def test_an_input_may_have_such_a_name() -> None:
    design = ta.Design(
        tensornet=1, name="placed", legs={"n": "query", "f": 3}, inputs={"x": "n f", "position_ids": "n f"},
        diagram={"y": "x[n f] + position_ids[n f] -> n f"}, output="y",
    )  # fmt: skip
    module, x = ta.compile(design), torch.randn(1, 5, 3)
    assert torch.equal(module(x, position_ids=x), 2 * x)
    assert torch.equal(module(x, position_ids=x, cu_seqlens=offsets((2, 3))), 2 * x)


def test_what_no_compiled_call_takes() -> None:
    longest = "a compiled call with 'cu_seqlens' needs 'max_seqlen', the length of the longest document."
    lengths = f"a compiled call pads documents to one length, and {COUNTING['fmm_lra_release']}: call it uncompiled."
    for name, options, sentence in (("mhsa", {}, longest), ("fmm_lra_release", {"max_seqlen": 3}, lengths)):
        torch._dynamo.reset()
        module = made(name, False)
        (x,) = rows_of(module, (2, 3))
        with pytest.raises(Exception, match="InputError") as caught:
            torch.compile(module, fullgraph=True, backend="eager")(x, cu_seqlens=offsets((2, 3)), **options)
        assert f"{name}: {sentence}" in str(caught.value)


def test_keys_may_be_the_declared_ones() -> None:
    source = {
        "tensornet": 1,
        "name": "keyed",
        "extends": "mhsa",
        "legs": {"f": 6, "h": "head 2"},
        "inputs": {"x": "m f", "memory": None},
        "diagram": {"K": "x[m f] Wk[f h d] -> m h d", "V": "x[m f] Wv[f h d] -> m h d"},
    }
    module = ta.compile(source, dtype=F64)
    x = torch.randn(1, 9, 6, dtype=F64)
    wanted = torch.cat([module(document) for document in x.split((3, 2, 4), 1)], 1)
    torch.testing.assert_close(module(x, cu_seqlens=offsets((3, 2, 4))), wanted)


def test_padding_does_not_grow_without_bound() -> None:
    """A delta rule with keys of ones multiplies its error by 1 - 16 / 2 at rows of zeros: padding must not."""
    query, key = ({"map": "elu1", "of": f"x[{leg} f] -> {leg} f"} for leg in "nm")
    step = {"delta_rule": "m", "query": query, "key": key, "value": "x[m f] Wv[f e] -> m e", "rate": "rate"}
    source = {
        "tensornet": 1, "name": "growing", "causal": True,
        "legs": {"n": "query", "m": "key", "f": 16, "e": 2}, "inputs": {"x": "n f"},
        "weights": {"Wb": "f", "Wv": "f e"},
        "diagram": {"rate": {"map": "sigmoid", "of": "x[m f] Wb[f] -> m"}, "y": step},
        "output": "y",
    }  # fmt: skip
    module = ta.compile(source)
    with torch.no_grad():
        module.Wb.fill_(-1.0)
    x = torch.ones(1, 203, 16)  # rates of sigmoid(-16)
    x[:, 200:] = 0.01
    x.requires_grad_()
    module(x, cu_seqlens=offsets((200, 3)))[:, 200:].sum().backward()
    assert x.grad is not None
    assert all(value.grad.isfinite().all() for value in (x, *module.parameters()))


def test_document_shows_the_document_of_a_call() -> None:
    box = {"softmax": "m", "scale": "d ** -0.5", "mask": "causal and document", "of": "Q[n h d] K[m h d] -> h n m"}
    source = {"tensornet": 1, "name": "documents", "extends": "mhsa", "diagram": {"A": box}}
    module, plain = (
        ta.compile(ta.load(one, legs={"f": 12, "h": 3}), causal=True, dtype=F64) for one in (source, "mhsa")
    )
    plain.load_state_dict(module.state_dict())
    (x,) = rows_of(plain, LENGTHS)
    assert torch.equal(module(x), plain(x))
    assert torch.equal(module(x, cu_seqlens=offsets(LENGTHS)), plain(x, cu_seqlens=offsets(LENGTHS)))
    assert "mask document" in module.plan.graph.to_text()
    assert module.plan.graph.hash != plain.plan.graph.hash
    box["mask"] = "causal and not document"
    (problem,) = ta.check(source)
    assert problem.message == "'causal and not document' shows no key."
