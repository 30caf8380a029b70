"""The relations, one function each: its docstring is the statement."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import tensornet_attn as ta
from tensornet_attn.cost.kernels import KERNELS
from tensornet_attn.graph.hidden import looks
from tensornet_attn.graph.padding import padding_of
from tensornet_attn.nn.tokens import call_of_tokens
from tensornet_attn.ops import OPS
from tensornet_attn.reference import ReferenceRun, seen_by
from tensornet_attn.runtime.triton.target import interpreting
from tests.random_call import F64, assert_same, usable
from tests.random_text import transposed
from tests.relations.edits import Unfit, boxes, leg_of, logarithm, times_rows, valid
from tests.relations.subject import BACKENDS, NotApplicable, Subject
from tests.relations.text import normal_form, pruned

LENGTHS = ((3, 1, 4), (2, 2, 2), (5, 0, 3), (1, 6), (0, 4, 4, 1))
FILLS = (torch.nan, torch.inf, 3.0)
LARGE = 6e4  # rows that are queries too overflow in maps of the design
PADDED = {  # three sequences with padding, by their length
    6: ([0, 0, 1, 1, 1, 1], [1, 0, 0, 1, 1, 0], [0, 1, 1, 0, 1, 1]),
    7: ([1, 1, 1, 0, 1, 0, 0], [0, 0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]),
}
NEAR = {F64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.02}
SIZES = ((1, 1), (3, 3), (2, 4), (4, 2), (5, 3), (33, 33), (7, 40))


def backends_agree(subject: Subject) -> None:
    """A backend gives the output, losses, gradients and states of the reference, whatever the lengths and masks."""
    inputs, options = subject.arguments(*SIZES)
    subject.same(
        lambda *xs: subject.module(*xs, **options),
        lambda *xs: subject.oracle(*xs, **options),
        inputs,
        subject.oracle,
    )


def not_a_number_is_seen(subject: Subject) -> None:
    """NaN in an input comes out where the reference has NaN for it, if another number in its place matters there.

    Other outputs are the reference's; recurrences, computed in chunks, may spread it to all rows, and fused and linear
    attention spread it from keys to all queries, because keys must be finite behind a mask of pairs. Torch's own
    attention computes without its fused kernel, which may give zeros for a query that is NaN (docs/pytorch.md).
    """
    subject.module.eval()
    subject.oracle.eval()
    kernels = {step.kernel.kind for step in subject.module.plan.schedule.steps if step.kernel is not None}
    spreads = any(kind in ("attention", "band") or not KERNELS[kind].pairs for kind in kernels)
    recurrent = any(step.box is not None and OPS[step.box.kind].recurrent for step in subject.graph.steps)
    inputs, options = subject.arguments((2, 4), (5, 7), (20, 11))
    options = {name: value for name, value in options.items() if name in ("mask", "key_mask")}
    for place in subject.draw.sample(range(len(inputs)), min(2, len(inputs))):
        entry = [subject.draw.randrange(size) for size in inputs[place].shape]
        index = tuple(entry[: subject.draw.choice([-1, None])])  # a row, or one entry

        def output(module: Any, factor: float) -> Tensor:
            changed = inputs[place].clone()  # noqa: B023
            changed[index] = factor * (changed[index] + 1) - 1  # noqa: B023
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), refusals():
                return module(*inputs[:place], changed, *inputs[place + 1 :], **options)  # noqa: B023

        before, *others = (output(subject.oracle, factor) for factor in (1.0, -0.7, 2.0))
        checked({"output": before})
        wanted, outcome = (output(module, torch.nan) for module in (subject.oracle, subject.module))
        matters = reduce(torch.logical_or, ((other - before).abs() > 1e-6 for other in others))
        assert outcome[matters & wanted.isnan()].isnan().all(), f"input {place}: NaN is lost"
        pairs = {*subject.pair} <= {*subject.leaves[place].legs}
        if not recurrent and (pairs or not spreads):
            rest = wanted.isfinite()
            assert_same({"output": outcome[rest]}, {"output": wanted[rest]})


def logarithms_of_nothing_are_finite(subject: Subject) -> None:
    """Where a logarithm of a sum, also that of a softmax, sums no key, outputs and gradients are finite, as in the
    reference, and the outputs are its numbers."""
    data = normal_form(subject.data)
    if not boxes(data, ("logsumexp",), leg_of(data, "key")):
        with refusals():
            logarithm(data, subject.draw)
    if not valid(data := pruned(data)):
        raise NotApplicable("a causal design reads the mean of its logarithms")
    subject = replace(subject, data=data)
    rows, hidden = subject.rows((2,), 5, 7), subject.mask(2, 7)
    hidden = hidden[:, : rows.keys]
    hidden[0] = False
    for dtype in subject.draw.sample([F64, torch.float32, torch.bfloat16, torch.float16], 2):
        typed, leaves = replace(subject, dtype=dtype), [x.to(dtype) for x in rows.leaves]
        wanted, outcome = (
            typed.results(lambda *xs: typed.run(*xs, key_mask=hidden, module=module), leaves, module)  # noqa: B023
            for module in (typed.oracle, typed.module)
        )
        for name, want in wanted.items():
            if want is not None and want.isfinite().all():
                assert outcome[name].isfinite().all(), f"{name} is not finite in {dtype}"
        output, found = wanted["output"], outcome["output"]
        least = 0 if dtype in (F64, torch.float32) else 1e3  # in half precision, logarithms of nothing are compared
        compared = output.isfinite() & (output.abs() >= least)
        torch.testing.assert_close(found[compared], output[compared], rtol=NEAR[dtype], atol=NEAR[dtype])


def hidden_rows_do_not_matter(subject: Subject) -> None:
    """Whatever rows hold that a key mask hides, NaN and infinities included: outputs and gradients stay, theirs are 0.

    Rows that are queries too give rows of the output, which are left out; gradients then stay for finite numbers.
    Others may hold what overflows float16, in which they are tried too.
    """
    check_hidden_rows(subject)
    if not subject.graph.tied:
        with suppress(NotApplicable):
            check_hidden_rows(replace(subject, dtype=torch.float16))


def check_hidden_rows(subject: Subject) -> None:
    """`hidden_rows_do_not_matter` in the dtype of the subject."""
    graph, rows = subject.graph, subject.rows((2,), 5, 7)
    leaves = [x.to(subject.dtype) for x in rows.leaves]
    visible = subject.mask(2, rows.keys)
    visible[1, :2] = False
    legs, inputs = subject.pair if graph.tied else (graph.key,), len(graph.of_role("input"))

    def call(*xs: Tensor) -> Tensor:
        output = subject.run(*xs, key_mask=visible)
        return filled(output, subject.output_axis, visible, 0.0) if graph.tied else output

    def results(fill: float) -> Any:
        held = subject.along(legs, lambda x, axis: filled(x, axis, visible, fill), leaves)
        held[inputs:] = leaves[inputs:]  # noise is finite
        outcome = subject.results(call, held)
        if graph.tied:
            outcome = {name: value for name, value in outcome.items() if not name.startswith("state ")}
            if not torch.tensor(fill).isfinite():
                return {"output": outcome["output"]}
        if not usable(outcome):
            return outcome
        gradients = [outcome[f"gradient of input {place}"] for place in range(inputs)]
        gradients += [None] * (len(held) - inputs)
        gradients = [torch.zeros_like(x) if y is None else y for x, y in zip(held, gradients, strict=True)]
        shown = subject.along(legs, lambda x, axis: filled(x, axis, visible, 0.0), gradients)
        assert all(map(torch.equal, shown, gradients)), "a hidden row has a gradient"
        return outcome

    wanted = results(0.5)
    checked(wanted)
    for fill in FILLS if graph.tied else (*FILLS, LARGE):
        outcome = results(fill)
        assert_same(outcome, {name: wanted[name] for name in outcome})


def filled(x: Tensor, axis: int, visible: Tensor, fill: float) -> Tensor:
    """x with this in the rows that are hidden: axis counts from the last, visible is [batch, rows]."""
    shape = [1] * x.ndim
    shape[0], shape[axis] = visible.shape
    return torch.where(visible.reshape(shape), x, fill)


def checked(results: Any) -> None:
    if not usable(results):
        raise NotApplicable("the numbers are too large to compare")


def hidden_pairs_do_not_matter(subject: Subject) -> None:
    """Entries of an input with queries and keys may be NaN where all of their readers hide them."""
    graph = subject.graph
    places = [i for i, tensor in enumerate(graph.of_role("input")) if {graph.query, graph.key} <= {*tensor.legs}]
    if not places:
        raise NotApplicable("no input has queries and keys")
    inputs, options = subject.arguments()
    bad = list(inputs)
    for place in places:
        hidden = hidden_entries(subject, place, inputs, options)
        bad[place] = torch.where(hidden, torch.nan, inputs[place].expand(hidden.shape))
        inputs[place] = inputs[place].expand(hidden.shape).clone()
    wanted = subject.results(lambda *xs: subject.module(*xs, **options), inputs)
    checked(wanted)
    assert_same(subject.results(lambda *xs: subject.module(*xs, **options), bad), wanted)


def hidden_entries(subject: Subject, place: int, inputs: Sequence[Tensor], options: dict[str, Any]) -> Tensor:
    """Where no reader of an input sees it, [batch..., legs]."""
    graph, tensor = subject.graph, subject.graph.of_role("input")[place]
    leaves = dict(zip((t.name for t in graph.of_role("input")), inputs, strict=True))
    lengths = {leg: inputs[place].shape[tensor.legs.index(leg) - len(tensor.legs)] for leg in (graph.query, graph.key)}
    run = ReferenceRun(graph, leaves, lengths, False, options.get("mask"), options.get("key_mask"))
    seen, shown = looks(graph), torch.zeros((), dtype=torch.bool)
    for step, use in graph.readers.get(tensor.name, ()):
        if use.legs != tensor.legs:
            raise NotApplicable("a reader names the legs otherwise")
        for every in seen[step.name][step.op.uses.index(use)]:
            visible = [seen_by(run, part, tensor.legs) for part in every]
            shown = shown | reduce(torch.logical_and, visible, torch.ones((), dtype=torch.bool))
    return ~shown.expand(torch.broadcast_shapes(shown.shape, inputs[place].shape))


def products_at_hidden_pairs_may_overflow(subject: Subject) -> None:
    """Where a product of rows multiplies a masked map, it may be infinite at hidden pairs, beside finite rows."""
    for plain in (True, False):
        check_products(subject, plain)


def check_products(subject: Subject, plain: bool) -> None:
    """`products_at_hidden_pairs_may_overflow` for a product alone, or for one of another form."""
    data = normal_form(subject.data)
    with refusals():
        huge = times_rows(data, subject.draw, plain)
    if not valid(data := pruned(data)):
        raise NotApplicable("the design cannot read a product in place of a map")
    subject, alone = replace(subject, data=data), torch.tensor([2])
    rows = subject.rows((2,), 5, 7)
    mask = subject.mask(rows.queries, rows.keys).index_fill(0, alone, False).index_fill(1, alone, False)
    held = [
        x.index_fill(-1, alone, 1e200) if leaf.name in huge else x
        for leaf, x in zip(subject.leaves, rows.leaves, strict=True)
    ]
    with refusals():
        subject.same(
            lambda *xs: subject.run(*xs, mask=mask),
            lambda *xs: subject.run(*xs, mask=mask, module=subject.oracle),
            held,
            subject.oracle,
        )


def rows_behind_do_not_matter(subject: Subject) -> None:
    """Rows after a sequence change nothing if padding is exact; a key mask hides them where the design asks for it."""
    padded(subject, behind=2)


def rows_before_do_not_matter(subject: Subject) -> None:
    """Hidden rows before a sequence change nothing if only distances matter."""
    padded(subject, before=3)


def padded(subject: Subject, behind: int = 0, before: int = 0) -> None:
    graph = subject.graph
    subject.module.eval()
    rows = subject.rows((2,), 4, 5)
    options = subject.key_mask(2, before + rows.keys + behind)
    if options and (before or padding_of(graph, [graph.output]).key_mask or subject.draw.random() < 0.5):
        place = torch.arange(before + rows.keys + behind)
        options["key_mask"] = ((place >= before) & (place < before + rows.keys)).expand(2, -1)
    else:
        options = {}

    def longer(x: Tensor, axis: int) -> Tensor:
        ends = [x.narrow(axis, 0, 1).detach() * 3 + 1] * (before + behind)
        return torch.cat([*ends[:before], x, *ends[before:]], axis)

    def call(*leaves: Tensor) -> Tensor:
        output = subject.run(*subject.along(subject.pair, longer, leaves), **options)
        return output.narrow(subject.output_axis, before, rows.queries)

    subject.same(call, subject.run, rows.leaves)


def hidden_keys_are_no_keys(subject: Subject) -> None:
    """Keys that a key mask hides are as if they were not there, with their queries, where only their order matters."""
    subject.module.eval()
    rows, tied = subject.rows((2,), 6, 5), subject.graph.tied
    visible = subject.mask(rows.keys)
    visible[0] = True

    def shorter(x: Tensor, axis: int) -> Tensor:
        return x.movedim(axis, 0)[visible].movedim(0, axis)

    def masked(*leaves: Tensor) -> Tensor:
        output = subject.run(*leaves, key_mask=visible.expand(2, -1))
        return shorter(output, subject.output_axis) if tied else output

    legs = subject.pair if tied else [subject.graph.key]
    subject.same(masked, lambda *xs: subject.run(*subject.along(legs, shorter, xs)), rows.leaves)


def tokens_are_the_sequence(subject: Subject) -> None:
    """Called by its tokens, a sequence with padding on the left, on the right and between gives what it gives alone."""
    subject.module.eval()
    graph, rows = subject.graph, subject.rows((3,), 6, 7)
    inputs, needed = len(graph.of_role("input")), subject.module._signature.needed
    for given in sorted({needed, inputs}):
        leaves = rows.leaves[:given]
        own_keys = not graph.tied and any(graph.key in leaf.legs for leaf in subject.leaves[:given])
        shown = [torch.tensor(PADDED[length]) > 0 for length in ((rows.queries, rows.keys) if own_keys else (6, 6))]
        alone = [[part.nonzero()[:, 0] for part in mask] for mask in shown]
        pairs = [[graph.query], [graph.key]] if own_keys else [subject.pair]

        def of_sequences(*xs: Tensor) -> Tensor:
            outputs = []
            for place in range(3):
                sequence = [x[place : place + 1] for x in xs]
                for legs, tokens in zip(pairs, alone, strict=False):  # noqa: B023
                    sequence = subject.along(legs, chosen(tokens[place]), sequence)
                outputs.append(subject.module(*sequence))
            return torch.cat(outputs, subject.output_axis)

        def of_tokens(*xs: Tensor) -> Tensor:
            y = call_of_tokens(subject.module, xs, shown[1], shown[0] if own_keys else None)  # noqa: B023
            parts = [chosen(tokens)(y[place : place + 1], subject.output_axis) for place, tokens in enumerate(alone[0])]  # noqa: B023
            return torch.cat(parts, subject.output_axis)

        with refusals():
            subject.same(of_tokens, of_sequences, leaves)


def chosen(tokens: Tensor) -> Callable[[Tensor, int], Tensor]:
    return lambda x, axis: x.index_select(axis, tokens)


def documents_are_calls(subject: Subject) -> None:
    """Documents packed into one row are calls of their own; an empty document is none."""
    subject.module.eval()
    graph, queries = subject.graph, subject.draw.choice(LENGTHS)
    keys = queries if graph.tied or graph.key is None else tuple(length % 3 + 1 for length in queries)
    rows = subject.rows((1,), sum(queries), sum(keys))
    names = ["cu_seqlens"] if keys is queries else ["cu_seqlens_q", "cu_seqlens_k"]
    offsets = [torch.tensor([0, *accumulate(lengths)], dtype=torch.int32) for lengths in (queries, keys)]
    packed: dict[str, Any] = dict(zip(names, offsets, strict=False))
    key_mask = subject.key_mask(1, rows.keys)

    def documents(masks: dict[str, Tensor], *leaves: Tensor) -> Tensor:
        outputs = []
        for length, end, across, last in zip(queries, accumulate(queries), keys, accumulate(keys), strict=True):
            own = subject.along([graph.query], narrow(end - length, length), leaves)
            own = subject.along([graph.key], narrow(last - across, across), own)
            mask = {name: value[:, last - across : last] for name, value in masks.items()}
            outputs += [subject.run(*own, **mask)] if length else []
        return torch.cat(outputs, subject.output_axis)

    with refusals():
        subject.run(*rows.leaves, **packed)
    calls: list[tuple[float, dict[str, Tensor]]] = [(1.0, {}), (1.0, key_mask), (1e-15, key_mask)]
    for cost, masks in calls:  # seconds of a call: documents are padded to one call, or not
        with patch("tensornet_attn.nn.packed.CALL", cost):
            options = packed | masks
            subject.same(partial(subject.run, **options), partial(documents, masks), rows.leaves)


def narrow(start: int, length: int) -> Callable[[Tensor, int], Tensor]:
    return lambda x, axis: x.narrow(axis, start, length)


@contextmanager
def refusals() -> Iterator[None]:
    """Turns the refusal of a call into NotApplicable."""
    try:
        yield
    except (ta.InputError, Unfit) as error:
        raise NotApplicable(str(error)) from None


def chunks_are_the_whole(subject: Subject) -> None:
    """Chunks and steps with a cache, empty ones included, give the output of the whole call."""
    graph, draw = subject.graph, subject.draw
    subject.module.eval()
    with refusals():
        cache = subject.module.new_cache()
    memory = any(graph.key in leaf.legs and leaf.default is None for leaf in graph.of_role("input"))
    if any({graph.query, graph.key} <= {*leaf.legs} for leaf in subject.leaves):
        raise NotApplicable("an input has queries and keys")
    rows = subject.rows((2,), 7, 6 if memory else 7)
    names = [leaf.name for leaf in subject.leaves if leaf.default is None]
    later = [leaf.name for leaf in subject.leaves if leaf.default is None and not (memory and graph.key in leaf.legs)]
    visible = None
    if subject.key_mask(2, 7) and not memory and draw.random() < 0.5:
        visible = torch.arange(7) >= torch.tensor([[2], [0]])
    first, outputs, at = draw.randint(1 if memory else 0, 3), [], 0
    with torch.no_grad():
        given = subject.named(rows.leaves, names)
        wanted = subject.module(**given, **({} if visible is None else {"key_mask": visible}))
        checked({"output": wanted})
        for length in (first, 1, 1, 0, 4 - first, 1):
            leaves = subject.along([graph.query] if memory else subject.pair, narrow(at, length), rows.leaves)
            options = {} if visible is None else {"key_mask": visible[:, : at + length]}
            chunk = subject.named(leaves, later if outputs else names)
            outputs.append(subject.module(**chunk, cache=cache, **options))
            at += length
    whole = torch.cat(outputs, subject.output_axis)
    if visible is not None:
        whole, wanted = (filled(y, subject.output_axis, visible, 0.0) for y in (whole, wanted))
    assert_same({"output": whole}, {"output": wanted})


def sequences_are_apart(subject: Subject) -> None:
    """The sequences of a batch are calls of their own, with or without a batch of one, in any order."""
    subject.module.eval()
    rows, order = subject.rows((3,), 4, 5), [2, 0, 1]
    masks = subject.key_mask(3, rows.keys)

    def call(index: Any, leaves: Sequence[Tensor]) -> Tensor:
        return subject.run(*[x[index] for x in leaves], **{name: mask[index] for name, mask in masks.items()})

    def each(*leaves: Tensor) -> Tensor:
        return torch.stack([call(0, leaves), call(slice(1, 2), leaves)[0], call(order, leaves)[0]])

    subject.same(each, lambda *xs: subject.run(*xs, **masks), rows.leaves)


def queries_are_apart(subject: Subject) -> None:
    """The last queries alone give the last rows of the output: their positions end where the keys end."""
    subject.module.eval()
    rows, last = subject.rows((2,), 5, 4), subject.draw.choice([1, 2, 4])
    narrower = narrow(5 - last, last)
    subject.same(
        lambda *xs: subject.run(*subject.along([subject.graph.query], narrower, xs)),
        lambda *xs: narrower(subject.run(*xs), subject.output_axis),
        rows.leaves,
    )


def masks_have_forms(subject: Subject) -> None:
    """A boolean mask is the same with the dimensions of the batch, as a float mask, and with a mask of keys in it."""
    rows, places = subject.rows((2,), 4, 6), subject.module.mask_places
    mask, keys = subject.mask(rows.queries, rows.keys), subject.mask(2, rows.keys)
    forms: list[dict[str, Tensor]] = [{"mask": mask.expand(2, *mask.shape)}, {"mask": mask.t().contiguous().t()}]
    if not places.maps and all(OPS[kind].takes_float_mask for _, kind, _ in places.places):
        forms.append({"mask": torch.where(mask, 0.0, -torch.inf).to(subject.dtype)})
    for form in forms:
        subject.same(lambda *xs: subject.run(*xs, **form), lambda *xs: subject.run(*xs, mask=mask), rows.leaves)  # noqa: B023
    both = {"mask": mask & keys[:, None], "key_mask": keys}
    subject.same(
        lambda *xs: subject.run(*xs, **both), lambda *xs: subject.run(*xs, mask=mask, key_mask=keys), rows.leaves
    )


def nothing_gives_nothing(subject: Subject) -> None:
    """Without queries, keys or sequences a call gives the reference's numbers or an InputError, and keeps states."""
    for batch, n, m in (((2,), 0, 3), ((2,), 3, 0), ((0,), 3, 3), ((2,), 0, 0)):
        try:
            rows = subject.rows(batch, n, m)
        except NotApplicable:
            continue
        try:
            wanted = subject.results(lambda *xs: subject.run(*xs, module=subject.oracle), rows.leaves, subject.oracle)
            outcome = subject.results(subject.run, rows.leaves)
        except ta.InputError:
            continue
        finite = all(x is None or x.isfinite().all() for x in outcome.values())  # a logsumexp of nothing is large
        assert finite, f"{batch}, {n} queries, {m} keys: not finite"
        assert_same(outcome, wanted)
        for name, value in outcome.items():
            if name.startswith("state ") and (batch == (0,) or n == 0):
                kept = subject.state[name.removeprefix("state ")]
                assert torch.equal(value, kept), f"{name} is touched by a call of nothing"  # type: ignore[arg-type]


def strides_do_not_matter(subject: Subject) -> None:
    """Expanded, transposed and sliced inputs give what contiguous ones give."""
    rows = subject.rows((1,), 4, 5)
    masks = {name: mask.expand(2, -1) for name, mask in subject.key_mask(1, rows.keys).items()}
    copies = {name: mask.clone() for name, mask in masks.items()}

    def expanded(x: Tensor) -> Tensor:
        return x.expand(2, *x.shape[1:])

    def turned(x: Tensor) -> Tensor:
        return expanded(x).transpose(0, -1).contiguous().transpose(0, -1)

    def sliced(x: Tensor) -> Tensor:
        return expanded(x).repeat_interleave(2, -1)[..., ::2] if x.ndim > 1 else expanded(x)

    for view in (expanded, turned, sliced):
        subject.same(
            lambda *xs: subject.run(*map(view, xs), **masks),  # noqa: B023
            lambda *xs: subject.run(*[expanded(x).contiguous() for x in xs], **copies),
            rows.leaves,
        )


def calls_leave_no_trace(subject: Subject) -> None:
    """A call gives the same after calls of other lengths and masks, without gradients and in inference mode."""
    rows, others = subject.rows((2,), 4, 5), [subject.rows((3,), 2, 3), subject.rows((), 6, 6)]
    before = subject.results(subject.run, rows.leaves)
    checked(before)
    with torch.no_grad():
        subject.run(*others[0].leaves)
    with torch.inference_mode():
        subject.run(*rows.leaves)
    subject.run(*others[1].leaves)
    assert_same(subject.results(subject.run, rows.leaves), before)


def copies_are_the_layer(subject: Subject) -> None:
    """A layer loaded from a state dict, a pickle and a deep copy give what the layer gives."""
    rows = subject.rows((2,), 4, 5)
    for layer in (subject.compiled(), pickle.loads(pickle.dumps(subject.module)), copy.deepcopy(subject.module)):
        wanted = subject.results(subject.run, rows.leaves)
        checked(wanted)
        assert_same(subject.results(lambda *xs: subject.run(*xs, module=layer), rows.leaves, layer), wanted)  # noqa: B023


def threads_are_apart(subject: Subject) -> None:
    """Two threads that call one layer at once, with gradients, get what one thread gets."""
    if subject.backend == "triton" and interpreting():
        raise NotApplicable("triton's interpreter runs one kernel at a time")
    subject.module.eval()
    calls = [subject.rows((2,), n, n + 1).leaves for n in (3, 9, 4, 9)]
    weights = [value for value in subject.module.parameters() if value.requires_grad]

    def gradients(leaves: list[Tensor]) -> dict[str, Tensor | None]:
        leaves = [x.clone().requires_grad_() for x in leaves]
        y = subject.run(*leaves)
        learned = [*leaves, *weights] if y.requires_grad else []
        found = torch.autograd.grad(y.square().sum(), learned, materialize_grads=True) if learned else ()
        return {"output": y.detach()} | {f"gradient {place}": value for place, value in enumerate(found)}

    wanted = [gradients(leaves) for leaves in calls]
    for results in wanted:
        checked(results)
    with ThreadPoolExecutor(2) as pool:
        for results, alone in zip(pool.map(gradients, calls), wanted, strict=True):
            assert_same(results, alone)


def stored_orders_do_not_matter(subject: Subject) -> None:
    """The same design with its weights stored in another order of legs is the same layer."""
    inputs, options = subject.arguments()
    wanted = subject.results(lambda *xs: subject.module(*xs, **options), inputs)
    checked(wanted)
    other, orders = transposed(subject.data, subject.draw)
    backend = BACKENDS[subject.backend]
    layer = ta.compile(other, backend.name, dtype=subject.dtype, **backend.options).train(subject.module.training)
    state = {name: value.permute(orders.get(name, [*range(value.ndim)])) for name, value in subject.state.items()}
    layer.load_state_dict(state)
    with refusals():  # where both are planned as maps with other legs, the mask has other dimensions
        results = subject.results(lambda *xs: layer(*xs, **options), inputs, layer)
    for name in orders:
        gradient = results.get(f"gradient of {name}")
        if gradient is not None:
            results[f"gradient of {name}"] = gradient.permute(
                sorted(range(gradient.ndim), key=orders[name].__getitem__)
            )
    assert_same(results, wanted)
