"""Softmax attention as one fused operation: the boxes that allow it, the reasons against others, the lowering.

# A.of = Q K;  A = softmax over m of A.of;  y = A V Wo     ->     A.o = attention(Q, K, V);  y = A.o Wo
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.kernels import Parts
from tensornet_attn.cost.price import scene_of
from tensornet_attn.cost.products import Matmul, Shape
from tensornet_attn.cost.rates import RateTable
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.seconds import accessed, passes_of
from tensornet_attn.cost.work import KernelWork
from tensornet_attn.emit.layout import columns, split
from tensornet_attn.emit.masks import attention_keep
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import SoftmaxOfScores, attentions
from tensornet_attn.graph.graph import Function, Graph, Step, Use
from tensornet_attn.graph.visibility import causal_up_to
from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.kernels.apart import TIE, compared
from tensornet_attn.kernels.implementation import Context, FormCost, Lowered, OfBoxes
from tensornet_attn.ops import OPS
from tensornet_attn.rewrite.change import with_steps
from tensornet_attn.rewrite.duplicate import STATE_APART
from tensornet_attn.rewrite.engine import Trace, everywhere, rewritten
from tensornet_attn.rewrite.fused import FusedAttention, fuse, operation, softmaxes
from tensornet_attn.rewrite.scores import RULES


@dataclass(frozen=True)
class Scored:
    """A softmax box in its graph, and after the rewriting of its scores that fused attention may need."""

    graph: Graph
    rewritten: Graph
    trace: Trace
    box: str

    @cached_property
    def op(self) -> FusedAttention | str:
        """The fused operation, or why the box cannot be fused."""
        return operation(attentions(self.rewritten)[self.box])


class AttentionWork(KernelWork):
    """Both products of a fused attention. Masks do not reduce them."""

    @property
    def monomials(self) -> dict[Legs, int]:
        return Counter(pairs_of(self.scene, attention_of(self.step)))

    @property
    def elementwise(self) -> int:
        op = attention_of(self.step)
        acts = bool(op.masks) + (self.scene.number(op.scale) != 1) + (self.scene.number(op.dropout) != 0)
        return self.batch * self.scene.size(op.scores) * (OPS["softmax"].per_element + acts)

    @property
    def kept(self) -> dict[str, int]:
        return attention_saved(self.scene, self.step, attention_of(self.step))

    @property
    def matmuls(self) -> list[Matmul]:
        return of_attention(self.scene, attention_of(self.step), self.batch)

    def seconds(self, table: RateTable, backward: bool) -> Parts:
        scene, step = self.scene, self.step
        learned, kind = backward and self.learned, kind_of(scene, step)
        seconds = attention_seconds(scene, step, attention_of(step), table, learned, kind)
        return {kind: seconds, "call": table.call[learned]}

    @property
    def passes(self) -> tuple[int, int]:
        """Query, key and value are padded to one width: written and read again."""
        op = attention_of(self.step)
        width, value_width = _widths(self.scene, op)
        if value_width == width:
            return self.moved, 0
        narrow = (op.value,) if value_width < width else (op.query, op.key)
        elements = (self.scene.elements(use) // min(value_width, width) for use in narrow)
        return self.moved + 2 * max(value_width, width) * sum(elements), 0

    def scratch(self, device: Device) -> tuple[int, int]:
        """Keys and values are repeated for heads that they lack; the backward does so for their gradients too."""
        op = attention_of(self.step)
        copied = sum(self.scene.elements(use) * times for use, times in _repeated(self.scene, op, op.beside))
        return copied, 2 * copied


class Fused(OfBoxes[Scored]):
    """Fused attention wherever possible. If this enables it, scores for states and losses are computed separately."""

    name, kind, alone, work = "fused attention", "attention", True, AttentionWork

    def places(self, graph: Graph) -> list[str]:
        return softmaxes(graph)

    def form(self, graph: Graph, place: str) -> Scored | None:
        attention = attentions(graph).get(place)
        if attention is None or not isinstance(attention.weighting, SoftmaxOfScores):
            return None
        changed, trace = rewritten(graph, place, RULES)
        return Scored(graph, changed, trace, place)

    def unsupported(self, form: Scored, context: Context) -> tuple[str, ...]:
        return (form.op,) if isinstance(form.op, str) else ()

    def cost(self, form: Scored, context: Context) -> FormCost | None:
        """The seconds of rewritten scores in fused attention, and those of the original scores in blocks of queries.

        The original ones mix heads on the scores, and are recomputed; rewritten ones of every head have the full width.
        """
        assert not isinstance(form.op, str)
        width, value_width = _widths(scene_of(form.rewritten, context.sizes, context.target), form.op)
        if not form.trace and width < PADDED * value_width:
            return None
        padded = f"values padded to the width {width} of keys"
        but = f"with {f'its scores as one product of width {width}' if form.trace else padded}, attention would take"
        return compared(fuse(form.rewritten, form.box), form.graph, context, but, TIE)

    def judged(self, form: Scored, context: Context) -> tuple[tuple[str, ...], FormCost | None]:
        reasons, cost = super().judged(form, context)
        plain = operation(attentions(form.graph)[form.box]) if reasons and form.trace else None
        return tuple(dict.fromkeys((plain, *reasons))) if isinstance(plain, str) else reasons, cost

    def lower(self, form: Scored, context: Context) -> Lowered:
        name = f"{form.box}.o"
        fused = _covering(fuse(form.rewritten, form.box), name, form.graph)
        how = f", after {', '.join(dict.fromkeys(firing.rule.name for firing in form.trace))}" if form.trace else ""
        chosen = {name: f"{self.name}: scaled_dot_product_attention, the scores are never stored{how}"}
        made_before = {step.name for step in fused.steps if step.kernel and step.name not in form.graph.step} - {name}
        return Lowered(fused, chosen | dict.fromkeys(made_before, "features side by side"))

    def takes(self, graph: Graph, place: str, context: Context) -> bool:
        return super().takes(graph, place, context) or super().takes(_apart(graph) or graph, place, context)

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        plain, separate = super().lowered(graph, context), _apart(graph)
        apart = plain if separate is None else super().lowered(separate, context)
        return apart if len(apart.chosen) > len(plain.chosen) else plain

    def pairs_stored(self, graph: Graph, step: Step, backward: bool) -> Iterator[str]:
        op = attention_of(step)
        masks = masks_of(graph, op)
        if masks and (masks != (CAUSAL,) or op.beside):
            yield f"the mask [{graph.query} {op.leg}] of fused attention"
        if backward and evaluate(op.dropout, graph.values) != 0:
            yield "all scores, which PyTorch's fused attention needs for dropout on a CPU"

    def replaced(self, step: Step) -> tuple[str, ...]:
        return attention_of(step).steps

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits one fused call."""
        op, query = attention_of(step), writer.graph.query
        of = operands_of(writer, op)
        box, value_name = op.steps[-1], writer.hidden.get(op.value.name, op.value.name)
        writer.line(f"# {box} and {box} {value_name}: one fused call; the scores are not materialised")
        names = [
            laid_operand(writer, "q", of.query, of.heads, (query,), of.width),
            laid_operand(writer, "k", of.key, of.shared, (*op.beside, op.leg), of.width),
            laid_operand(writer, "v", of.value, of.shared, (op.leg,), of.columns),
        ]
        alike = of.width == of.columns and all({*of.heads} <= {*operand.legs} for operand in of[:3])
        options = options_of(writer, op, of.heads)
        expression = writer.call(_function(writer, op, alike, options), *names, *options)
        expression += columns([*map(writer.size, of.columns)])
        unpack = split(-2 - len(of.columns), [*map(writer.size, of.heads)])  # only when a reader needs the heads
        expression, unpack = (expression, unpack) if of.heads else (expression + unpack, "")
        legs = (*of.heads, query, *of.columns)
        writer.named(step.name, expression, legs, packed=max(len(of.heads), 1), unpack=unpack)


PADDED = 16  # keys so many times as wide as values: most of the fused call's work is on zeros, so it has a price
FUSED = Fused()


def _apart(graph: Graph) -> Graph | None:
    """The graph in which scores for states and losses are computed separately; None if there are none."""
    separate, trace = everywhere(graph, (STATE_APART,))
    return separate if trace else None


def _covering(fused: Graph, name: str, before: Graph) -> Graph:
    """Adds to the attention all steps of the diagram that it replaces, and whether logarithms are among them."""
    op, kernel = attention_of(fused.step[name]), fused.step[name].kernel
    assert kernel is not None
    *_, box = op.steps
    removed = [step.name for step in before.steps if step.name not in fused.step and step.name != box]
    written = before.step[box].box
    logarithms = bool(op.beside) and written is not None and written.other is None
    form = replace(op, steps=(*removed, box), logarithms=logarithms)
    return with_steps(fused, {name: [replace(fused.step[name], op=replace(kernel, form=form))]})


CAUSAL = Function("causal")
CAUSAL_ATTENTION, MASKED_ATTENTION = "causal attention", "masked attention"
SKIPPED = 512  # keys in a block of fused attention on a CPU


def _function(writer: Writer, op: FusedAttention, alike: bool, options: list[str]) -> str:
    """The function to call; `alike`: query, key and value have the same heads and one width."""
    if not writer.plain or (alike and all("=" not in option or "dropout=" in option for option in options)):
        return "attend"
    return "attend_joined" if op.logarithms else "attend_heads"


def attention_of(step: Step) -> FusedAttention:
    """The form of a kernel 'attention'."""
    assert isinstance(step.form, FusedAttention)
    return step.form


def kind_of(scene: SizedGraph, step: Step) -> str:
    """The part to which the seconds of a kernel 'attention' count."""
    op = attention_of(step)
    masks = masks_of(scene.graph, op)
    if not masks:
        return "attention"
    plain = scene.sizes[op.leg] <= causal_up_to(masks, scene.graph.values) and not op.beside
    return CAUSAL_ATTENTION if plain else MASKED_ATTENTION


def pairs_of(scene: SizedGraph, op: FusedAttention) -> list[Legs]:
    """The legs of both products of fused attention, which pads the narrower of scores and values."""
    both = [scene.ordered((*op.scores, *legs)) for legs in ((*op.query.legs, *op.key.legs), op.value.legs)]
    wider = max(both, key=scene.size)
    return both if scene.size(both[0]) == scene.size(both[1]) else [wider, wider]


def attention_saved(scene: SizedGraph, step: Step, op: FusedAttention) -> dict[str, int]:
    """Query, key, value and result at the wider of both widths; values once for each key of a position.

    Keys and values are repeated for heads that they lack if the other one has them, or with a sink.
    """
    heads = [leg for leg in op.scores if leg not in (scene.graph.query, op.leg, *op.beside)]
    width, out_width = _widths(scene, op)
    wide = max(width, out_width)
    copies = {"query": 1, "key": 1, "value": scene.size(op.beside)}
    for role, use, partner in (("key", op.key, op.value), ("value", op.value, op.key)):
        lacking = [leg for leg in heads if leg not in use.legs]
        if op.sink is not None or ({*lacking} & {*partner.legs} and {*heads} & {*use.legs}):
            copies[role] *= scene.size(lacking)
    floats = scene.kept((op.sink,) if op.sink else ())
    for (role, times), use, use_width in zip(copies.items(), op.uses, (width, width, out_width), strict=False):
        same = times == 1 and use_width == wide
        floats |= (
            scene.kept((use,)) if same else {f"{step.name}: {role}": scene.elements(use) * times * wide // use_width}
        )
    padded = step.name if out_width == wide else f"{step.name}: padded"  # of which the result is a view
    rows = scene.batch_of(step) * scene.size((*heads, scene.query))
    return floats | {padded: scene.stored[step.name] * wide // out_width, f"{step.name}: log-sum-exp": rows}


def of_attention(scene: SizedGraph, op: FusedAttention, batch: int) -> list[Matmul]:
    """The scores and the sums of values of one call."""
    heads = batch * scene.size({*op.scores} - {scene.graph.query, op.leg})
    queries, keys = scene.size({*op.scores} & {scene.query}), scene.size((op.leg,))
    width = max(_widths(scene, op))
    both = Shape(heads, queries, keys, width), Shape(heads, queries, width, keys)
    return [Matmul(shape, op.scores, float(shape.macs)) for shape in both]


def attention_seconds(
    scene: SizedGraph, step: Step, op: FusedAttention, table: RateTable, learned: bool, kind: str
) -> float:
    """Pairs of queries and keys at the wider of both widths, and copies of keys and values for heads they lack."""
    copies = 2 * accessed(sum(scene.elements(use) * times for use, times in _repeated(scene, op) if times > 1), table)
    pairs = float(scene.batch_of(step) * scene.size(op.scores))
    queries = scene.size({*op.scores} & {scene.query})
    if kind == CAUSAL_ATTENTION:  # blocks of keys beyond the last query of a block are skipped
        keys = scene.sizes[op.leg]
        pairs *= min(1.0, (keys + SKIPPED) / (2 * keys))
    return pairs * table.of_pair(queries, max(_widths(scene, op)), learned) + passes_of(learned) * copies


def _widths(scene: SizedGraph, op: FusedAttention) -> tuple[int, int]:
    """The widths of a query and of a value; the fused call pads the narrower one with zeros."""
    width = scene.size({*op.query.legs} & {*op.key.legs} - {*op.scores})
    return width, scene.size({*op.value.legs} - {*op.scores})


def _repeated(scene: SizedGraph, op: FusedAttention, others: Legs = ()) -> list[tuple[Use, int]]:
    """Keys and values, and how often each is repeated for heads that it lacks; `others`: legs that are no heads."""
    heads = {*op.scores} - {scene.graph.query, op.leg, *others}
    return [(use, scene.size(heads - {*use.legs})) for use in (op.key, op.value)]


def masks_of(graph: Graph, op: FusedAttention) -> tuple[Function, ...]:
    """The masks of the box, plus `causal` if the design is causal."""
    return (*op.masks, CAUSAL) if graph.causal and CAUSAL not in op.masks else op.masks


class Operands(NamedTuple):
    """Query, key and value of a call, their heads, and the legs of their rows.

    `heads`: those of key or value, which are `shared`, first, so that consecutive query heads share a key head.
    """

    query: TensorText
    key: TensorText
    value: TensorText
    heads: Legs
    shared: Legs
    width: Legs
    columns: Legs


def operands_of(writer: Writer, op: FusedAttention) -> Operands:
    """The operands of an attention."""
    query, key, value = (writer.value(use) for use in (op.query, op.key, op.value))
    heads = [leg for leg in op.scores if leg not in (writer.graph.query, op.leg, *op.beside)]
    shared = within(heads, (*key.legs, *value.legs))
    width = within(without(query.legs, *op.scores), key.legs)
    columns = without(value.legs, *op.scores)
    return Operands(query, key, value, (*shared, *without(heads, *shared)), shared, width, columns)


def options_of(writer: Writer, op: FusedAttention, heads: Legs) -> list[str]:
    """The arguments of the call after query, key and value."""
    masks = masks_of(writer.graph, op)
    written = without(op.scores, writer.graph.query, op.leg, *op.beside)
    longest = causal_up_to(masks, writer.graph.values)
    causal = str(longest == inf)
    if 0 < longest < inf:  # in a short call, the masks hide later keys only
        causal = writer.call("up_to", writer.length(op.leg), str(int(longest)))
    keep = attention_keep(writer, masks, tuple(written.index(leg) for leg in heads), causal)
    dropout = writer.number(op.dropout)
    options = [*keep, writer.scale(op.scale)]
    if dropout not in ("0", "0.0"):
        options.append(f"dropout={dropout} if self.training else 0.0")
    options += [f"causal={causal}"] if causal != "False" else []
    options += [f"keys={' * '.join(map(writer.size, op.beside))}"] if op.beside else []
    options += ["logarithms=True"] if op.logarithms and not writer.plain else []
    return [*options, *sink_options(writer, op, heads)]


def sink_options(writer: Writer, op: FusedAttention, heads: Legs) -> list[str]:
    """The arguments for a sink, laid out as [heads, query leg, 1] with ones for missing legs."""
    if op.sink is None:
        return []
    query, value = writer.graph.query, writer.value(op.sink)
    sink_heads, along = {*heads} & {*value.legs}, (query,) if query in value.legs else ()
    if sink_heads in (set(), {*heads}):
        expression = value.grouped((heads if sink_heads else (), along, ()))
    else:
        expression = value.grouped((*((leg,) if leg in sink_heads else () for leg in heads), along, ()))
        expression = writer.call("over_heads", expression, *map(writer.size, heads))
    sink = writer.operand("sink", value, (heads if sink_heads else (), along, ()), expression)
    if writer.plain:
        return [f"sink={sink}"]
    writer.functions.add("attention_beside_sink")
    return [f"sink={sink}", "call=attention_beside_sink"]


def laid_operand(
    writer: Writer, name: str, value: TensorText, heads: Legs, sequence: Legs, width: Legs, heads_first: bool = True
) -> str:
    """A line that lays an operand out as [heads, sequence, width]: one head if it has none of them, else all.

    `heads_first` False: as [sequence, heads, width].
    """
    held_heads, expression = {*heads} & {*value.legs}, ""
    if held_heads not in (set(), {*heads}):
        expression = value.grouped((*((leg,) if leg in held_heads else () for leg in heads), sequence, width))
        expression = writer.call("over_heads", expression, *map(writer.size, heads))
        expression += "" if heads_first else ".transpose(-3, -2)"
    rows = (heads if held_heads else (), sequence)
    return writer.operand(name, value, (*(rows if heads_first else rows[::-1]), width), expression)
