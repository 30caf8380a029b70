"""Sums over the keys that queries read along a feature leg: linear attention written with explicit states.

# S = sum over m of k[m g d] v[m g e];  T = P[g h] S[n g d e];  O = q[n h d] T[n h d e]
#     ->   if no heads are mixed    A = keep over m of q k;  O = A v        a map, which linear attention computes
#     ->   otherwise                O = states(q, P, k, v); what T adds to its states is added to them in the kernel

In a causal diagram S has a value per query; neither lowering stores these values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2, prod

from tensornet_attn.cost.blocks import CHUNKS
from tensornet_attn.emit.layout import split
from tensornet_attn.emit.masks import takes_mask
from tensornet_attn.emit.sides import sides_maps, unmapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import ScoreTerm
from tensornet_attn.graph.graph import Contraction, Graph, Step, Term, Use
from tensornet_attn.graph.recurrence import Recurrence, recurrence_of, sums
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.ir.steps import legs_in, plus, within, without
from tensornet_attn.ir.values import Legs, TensorText, shape_comment
from tensornet_attn.kernels.apart import compared
from tensornet_attn.kernels.implementation import Context, FormCost, Lowered, OfBoxes, kernel, leg_sizes
from tensornet_attn.kernels.linear import DENSE, RecurrenceWork, cpp_option, sides_kept
from tensornet_attn.rewrite.change import fresh, with_steps
from tensornet_attn.rewrite.duplicate import beside_output
from tensornet_attn.rewrite.reads import Read, joined, mixes_heads, placed, read_of


class StatesWork(RecurrenceWork):
    """Sums of keys, their mixture, and what queries read of it."""

    @property
    def monomials(self) -> dict[Legs, int]:
        """MACs of one batch element, by the legs they run over."""
        scene, step = self.scene, self.step
        recurrence, macs = recurrence_of(step), Counter[Legs]()
        key, width = scene.key, (*recurrence.features, *recurrence.value_legs)
        causal = recurrence.causal(scene.graph)
        query = key if causal else scene.query  # a scan pads queries to the number of keys
        chunk, scored = self._scored_chunk()
        if recurrence.value is not None:
            macs[(key, *recurrence.mixed, *width)] += 1
        macs[(*recurrence.heads, *recurrence.mixed, *width)] += -(-scene.sizes[key] // chunk) if causal else 1
        macs[(query, *recurrence.heads, *width)] += 1
        if causal:
            if scored:
                macs[(query, *recurrence.heads, *recurrence.mixed, *recurrence.features)] += chunk
            if recurrence.value is not None:
                macs[(query, *recurrence.heads, *recurrence.mixed, *recurrence.value_legs)] += chunk
        return dict(macs)

    @property
    def elementwise(self) -> int:
        """Sums of keys without values, additions to states; if causal also the mask inside chunks, the sums of states,
        and those of the values that mixed heads read."""
        scene, recurrence, batch = self.scene, self.recurrence, self.batch
        rows, (chunk, scored) = scene.keys, self._scored_chunk()
        operations = rows * scene.size((*recurrence.mixed, *recurrence.features)) if recurrence.value is None else 0
        if recurrence.added is not None:
            operations += scene.size(recurrence.added.legs)
        if recurrence.causal(scene.graph):
            operations += (
                rows
                * scene.size((*recurrence.heads, *recurrence.mixed))
                * (chunk * scored + scene.size(recurrence.value_legs))
            )
            operations += -(-rows // chunk) * scene.size(
                (*recurrence.mixed, *recurrence.features, *recurrence.value_legs)
            )
        return batch * operations

    @property
    def kept(self) -> dict[str, int]:
        return sides_kept(self.scene, self.step, self.chunk)

    @property
    def stored(self) -> dict[str, int]:
        """Floats saved for backward besides operands and result: states, mixed states, and scores inside the chunks."""
        scene, step = self.scene, self.step
        recurrence, batch, causal = self.recurrence, self.batch, self.recurrence.causal(scene.graph)
        rows, width = scene.keys, (*recurrence.features, *recurrence.value_legs)
        chunk, scored = self._scored_chunk()
        chunks = -(-rows // chunk) if causal else 1
        floats = {
            f"{step.name}: {name}": batch * chunks * scene.size((*legs, *width))
            for name, legs in (("states", recurrence.mixed), ("mixed states", recurrence.heads))
        }
        heads = scene.size((*recurrence.heads, *recurrence.mixed))
        return floats | ({f"{step.name}: scores": batch * rows * chunk * heads} if causal and scored else {})

    @property
    def chunk(self) -> int:
        """Keys per chunk of a kernel; 0 if it is not causal."""
        return self._scored_chunk()[0] if self.recurrence.causal(self.scene.graph) else 0

    def _scored_chunk(self) -> tuple[int, bool]:
        """Keys per chunk, and whether scores are computed; sums of keys alone use those of their keys and values."""
        scene = self.scene
        lead = max(
            map(recurrence_of, _in_one_call(scene.graph, self.step)), key=lambda member: member.value is not None
        )
        return states_chunk(scene.graph, lead, scene.sizes), lead.value == self.recurrence.value


class States(OfBoxes["Mixed"]):
    """Sums over keys that are mixed before queries read them, if this needs fewer MACs than scores."""

    name, kind, pairs, work = "mixed states", "states", False, StatesWork

    def places(self, graph: Graph) -> list[str]:
        return [step.name for step in sums(graph)]

    def form(self, graph: Graph, place: str) -> Mixed | None:
        read = read_of(graph, graph.step[place])
        decays = read is not None and graph.query in legs_in(read.key)
        return Mixed(graph, read) if read is not None and mixes_heads(read) and not decays else None

    def unsupported(self, form: Mixed, context: Context) -> tuple[str, ...]:
        return (form.recurrence,) if isinstance(form.recurrence, str) else ()

    def cost(self, form: Mixed, context: Context) -> FormCost:
        """The seconds of the states, and of the scores."""
        return compared(form.recurrent_graph, form.graph, context, "states would take")

    def lower(self, form: Mixed, context: Context) -> Lowered:
        graph, recurrence = form.recurrent_graph, form.recurrence
        assert not isinstance(recurrence, str)
        how = (
            f", in chunks of {states_chunk(graph, recurrence, context.sizes)}" if recurrence.causal(form.graph) else ""
        )
        name = f"{form.read.box.name}.read"
        how += "".join(
            f", in one call with '{partner}'" for partner in recurrence_of(graph.step[name]).pair if partner != name
        )
        over = " and ".join(f"'{leg}'" for leg in recurrence.mixed)
        description = f"the keys are summed first, then mixed over {over} and read by queries{how}; {DENSE}"
        return Lowered(graph, {name: f"{self.name}: {description}"})

    def in_cpp(self, graph: Graph, step: Step) -> bool:
        form = recurrence_of(step)
        return form.one_product and not form.causal(graph) and bool(form.pair)

    def plain(self, step: Step) -> bool:
        return True

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits one call; the first kernel of a pair calls for both."""
        graph, query, key = writer.graph, writer.graph.query, str(writer.graph.key)
        steps = _in_one_call(graph, step)
        if step.name != steps[0].name:
            return
        steps.sort(key=lambda kernel_step: recurrence_of(kernel_step).value is None)
        recurrences = [recurrence_of(kernel_step) for kernel_step in steps]
        boxes = " and ".join(recurrence.box.name for recurrence in recurrences)
        writer.line(f"# {boxes}: sums over {key} first, mixed over heads; no {query} by {key} tensor is formed")
        first, (term,) = recurrences[0], recurrences[0].terms
        q = _side(writer, "q", term.query[0], first.heads, query, first.features)
        k = _side(writer, "k", term.key[0], first.mixed, key, first.features)
        v = _side(writer, "v", first.value, first.mixed, key, first.value_legs)
        mix = _mix(writer, first.mix, first.heads, first.mixed)
        options = ["mask" if takes_mask(graph) else "None", "key_mask", writer.batch_dims]
        if first.causal(graph):
            options.append(f"causal=True, chunk={states_chunk(graph, first)}")
        maps = sides_maps(writer, first)
        if maps != ["None", "None"]:
            options.append(f"maps=({', '.join(maps)})")
        addends = [
            writer.operand("E", writer.value(added), (recurrence.heads, recurrence.features, recurrence.value_legs))
            if (added := recurrence.added) is not None
            else "None"
            for recurrence in recurrences
        ]
        targets = [
            TensorText(writer.local[kernel_step.name], (*recurrence.heads, query, *recurrence.value_legs), True)
            for kernel_step, recurrence in zip(steps, recurrences, strict=True)
        ]
        if any(addend != "None" for addend in addends):
            options.append(f"added={addends[0]}" if len(steps) == 1 else f"added=({', '.join(addends)})")
        options += cpp_option(writer, step, [step]) if len(steps) > 1 else []
        call = writer.call("mixed_states" if len(steps) == 1 else "mixed_states_and_blockwise", q, k, v, mix, *options)
        suffixes = [
            (split(-1, [*map(writer.size, recurrence.value_legs)]) if recurrence is first else "")
            + split(-2 - len(recurrence.value_legs), [*map(writer.size, recurrence.heads)])
            for recurrence in recurrences
        ]
        if len(steps) == 1:
            writer.line(f"{targets[0].text} = {call}{suffixes[0]}", targets[0])
        else:
            shapes = "; ".join(shape_comment(target) for target in targets)
            writer.line(f"{', '.join(target.text for target in targets)} = {call}  # {shapes}")
            for target, suffix in zip(targets, suffixes, strict=True):
                if suffix:
                    writer.line(f"{target.text} = {target.text}{suffix}")
        writer.values |= {kernel_step.name: target for kernel_step, target in zip(steps, targets, strict=True)}


@dataclass(frozen=True)
class Mixed:
    """A sum over the keys that is mixed before queries read it."""

    graph: Graph
    read: Read

    @cached_property
    def recurrence_and_operands(self) -> tuple[Recurrence | str, tuple[Step, ...]]:
        """The states, or why they cannot be used, and the steps that compute their operands."""
        before: list[Step] = []
        return _recurrence(self.graph, self.read, before), tuple(before)

    @property
    def recurrence(self) -> Recurrence | str:
        return self.recurrence_and_operands[0]

    @cached_property
    def recurrent_graph(self) -> Graph:
        """The graph with the states as one kernel."""
        recurrence, before = self.recurrence_and_operands
        assert not isinstance(recurrence, str)
        graph, box, name = self.graph, self.read.box, f"{self.read.box.name}.read"
        assert box.box is not None
        (term,), of, legs = (
            recurrence.terms,
            box.box.of,
            (*recurrence.heads, graph.query, *recurrence.value_legs),
        )
        value, mix = (() if use is None else (use,) for use in (recurrence.value, recurrence.mix))
        states = [(box.use, *mix), *([(recurrence.added,)] if recurrence.added else [])]
        inside = Step(of.name, Contraction.of(*term.key, *value), of.legs)
        contraction = Contraction(tuple(plus(*term.query, *state) for state in states))
        body = (inside, box, Step(name, contraction, legs))
        kernel_step = Step(name, kernel(STATES.kind, graph, before, body, recurrence), legs)
        read = replace(self.read, terms=()) if recurrence.added else self.read
        late = [step for step in before if recurrence.added is None or step.name != recurrence.added.name]
        early = [step for step in before if step not in late]
        return _paired(
            placed(_early(graph, early), read, [*late, kernel_step], Term(read.coefficient, (Use(name, legs),))), name
        )


def _recurrence(graph: Graph, read: Read, before: list[Step]) -> Recurrence | str:
    """The states with one use each for query, key, values and mixture, computed `before`; or why not."""
    name = read.box.name
    query, key = (
        joined(fresh(graph, f"{name}.{side}"), uses, before) for side, uses in (("q", read.query), ("k", read.key))
    )
    value = joined(fresh(graph, f"{name}.v"), read.value, before) if read.value else None
    needed = legs_in((query, key, *((value,) if value else ())))
    mix = joined(fresh(graph, f"{name}.mix"), read.mix, before, needed) if read.mix else None
    pair, features = {graph.query, graph.key}, {*read.features}
    mixed = {*key.legs} - features - pair
    value_only = ({*value.legs} if value else set()) - mixed - pair
    heads = {*query.legs} - features - pair
    heads_match = (
        not mixed & heads
        and not value_only & ({*query.legs} | {*key.legs})
        and (value is None or mixed <= {*value.legs})
        and features <= {*query.legs} & {*key.legs}
        and ({*mix.legs} if mix else set()) <= heads | mixed
        and {*read.legs} - pair - value_only <= heads
    )
    if not heads_match:
        return "queries, keys, values and mixing weights do not share heads in the way that mixed states need"
    term = ScoreTerm(ONE, (query,), (key,), width=within(key.legs, features))
    outer_legs = within(query.legs, heads)
    inner_legs = within(value.legs if value else (), value_only)
    return Recurrence(
        read.box,
        (term,),
        value,
        outer_legs,
        without(read.box.legs, graph.query, *features, *value_only),
        inner_legs,
        mixes=True,
        mix=mix,
        added=_added(read, (*outer_legs, *term.features, *inner_legs), before),
    )


def _added(read: Read, legs: tuple[str, ...], before: list[Step]) -> Use | None:
    """The terms that are added to the state, as a step; None if queries read them on their own: they lack some leg."""
    used_legs = legs_in(use for term in read.terms for use in term.factors)
    outside = used_legs & {*read.between.legs} if read.between else used_legs
    if not read.terms or read.coefficient != ONE or outside != {*legs}:
        return None
    before.append(Step(f"{read.box.name}.added", Contraction(read.terms), legs))
    return Use(before[-1].name, legs)


def _early(graph: Graph, early: Sequence[Step]) -> Graph:
    """The graph with these steps as soon as their operands are known, so that kernels that need them share a call."""
    for step in early:
        operands = step.reads
        index = max((i + 1 for i, producer in enumerate(graph.steps) if producer.name in operands), default=0)
        graph = replace(graph, steps=(*graph.steps[:index], step, *graph.steps[index:]))
    return graph


STATES = States()


def _paired(graph: Graph, name: str) -> Graph:
    """The graph in which one call computes a kernel and another with the same keys, if one of the two has values.

    Steps that only states and losses need run under conditions of their own.
    """
    beside = beside_output(graph)
    for candidate in graph.steps:
        if not isinstance(candidate.form, Recurrence) or not candidate.form.mixes or candidate.form.pair:
            continue
        if {name, candidate.name} & beside:
            continue
        pair = first, second = sorted((graph.step[name], candidate), key=graph.steps.index)
        leading, following = map(recurrence_of, pair)
        between = graph.steps[graph.steps.index(first) : graph.steps.index(second)]
        if (
            (leading.value is None) != (following.value is None)
            and (leading.terms, leading.mix, leading.heads) == (following.terms, following.mix, following.heads)
            and {*graph.masks(leading.box)} == {*graph.masks(following.box)}
            and not {step.name for step in between} & second.reads
        ):
            names = first.name, second.name
            return with_steps(
                graph,
                {
                    member.name: [
                        replace(member, op=replace(member.kernel, form=replace(recurrence_of(member), pair=names)))
                    ]
                    for member in pair
                    if member.kernel
                },
            )
    return graph


def _in_one_call(graph: Graph, step: Step) -> list[Step]:
    """The kernel, or both of its pair, in the order of the schedule, unless the second reads what is hidden later."""
    pair = [graph.step[name] for name in recurrence_of(step).pair]
    hidden = [{*member.kernel.hidden} if member.kernel else set() for member in pair]
    return pair if pair and hidden[1] <= hidden[0] else [step]


def states_chunk(graph: Graph, recurrence: Recurrence, sizes: Mapping[str, int] | None = None) -> int:
    """Keys per chunk: fewer than in linear attention, by the number of mixed heads with scores inside a chunk."""
    all_sizes = leg_sizes(graph, sizes)
    root: int = 2 ** round(log2(prod(all_sizes[leg] for leg in (*recurrence.features, *recurrence.value_legs))) / 2)
    return min(max(root // prod(all_sizes[leg] for leg in recurrence.mixed), CHUNKS[0]), CHUNKS[1])


def _side(writer: Writer, name: str, use: Use | None, heads: Legs, sequence: str, columns: Legs) -> str:
    """The name of an operand laid out as [heads, sequence, columns], with heads flattened."""
    return "None" if use is None else writer.operand(name, unmapped(writer, use)[0], (heads, (sequence,), columns))


def _mix(writer: Writer, use: Use | None, heads: Legs, mixed: Legs) -> str:
    """The mixture as a matrix [heads, mixed heads]."""
    sizes = [" * ".join(map(writer.size, legs)) or "1" for legs in (heads, mixed)]
    if use is None:
        return f"{writer.like.text}.new_ones({', '.join(sizes)})"
    mixture = writer.value(use)
    missing_legs = {*heads, *mixed} - {*mixture.legs}
    mixture = mixture.aligned((*heads, *mixed), whole=True) if missing_legs else mixture
    matrix = mixture.grouped((heads, mixed))
    return f"({matrix}).expand({', '.join(sizes)})" if missing_legs else matrix
