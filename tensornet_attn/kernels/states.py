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
from tensornet_attn.cost.figures import counted
from tensornet_attn.cost.scene import Scene
from tensornet_attn.emit.layout import split
from tensornet_attn.emit.masks import takes_mask
from tensornet_attn.emit.sides import sides_maps, unmapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import ScoreTerm
from tensornet_attn.graph.model import Contraction, Graph, Step, Term, Use
from tensornet_attn.graph.recurrence import Recurrence, recurrence_of, sums
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.ir.values import Legs, Value, shape_comment
from tensornet_attn.kernels.implementation import Context, Cost, Lowered, OfBoxes, kernel
from tensornet_attn.kernels.linear import DENSE, cpp_option, sides_kept
from tensornet_attn.rewrite.change import fresh, legs_in, with_steps
from tensornet_attn.rewrite.reads import Read, joined, mixes_heads, placed, read_of


class States(OfBoxes["Mixed"]):
    """Sums over keys that are mixed before queries read them, if this needs fewer MACs than scores."""

    name, kind, pairs = "mixed states", "states", False

    def places(self, graph: Graph) -> list[str]:
        return [step.name for step in sums(graph)]

    def form(self, graph: Graph, place: str) -> Mixed | None:
        read = read_of(graph, graph.step[place])
        decays = read is not None and graph.query in legs_in(read.key)
        return Mixed(graph, read) if read is not None and mixes_heads(read) and not decays else None

    def unsupported(self, form: Mixed, context: Context) -> tuple[str, ...]:
        return (form.parts,) if isinstance(form.parts, str) else ()

    def cost(self, form: Mixed, context: Context) -> Cost:
        """MACs of the states, and of the scores."""
        made, parts = form.made, form.parts
        assert not isinstance(parts, str)
        known = {leg.name: leg.size or 1 for leg in made.legs} | dict(context.sizes)
        work = self.macs(Scene(made, known), made.step[f"{form.read.box.name}.read"])
        linear = sum(count * prod(known[leg] for leg in legs) for legs, count in work.items())
        heads = prod(known[leg] for leg in (str(made.query), str(made.key), *parts.heads, *parts.mixed))
        dense = heads * (prod(known[leg] for leg in parts.features) + prod(known[leg] for leg in parts.own))
        return Cost(linear, dense, counted, "states would cost")

    def lower(self, form: Mixed, context: Context) -> Lowered:
        made, parts = form.made, form.parts
        assert not isinstance(parts, str)
        how = f", in chunks of {states_chunk(made, parts, context.sizes)}" if parts.causal(form.graph) else ""
        name = f"{form.read.box.name}.read"
        how += "".join(f", in one call with '{one}'" for one in recurrence_of(made.step[name]).pair if one != name)
        over = " and ".join(f"'{leg}'" for leg in parts.mixed)
        description = f"the keys are summed first, then mixed over {over} and read by queries{how}; {DENSE}"
        return Lowered(made, {name: f"{self.name}: {description}"})

    def in_cpp(self, graph: Graph, step: Step) -> bool:
        form = recurrence_of(step)
        return form.one_product and not form.causal(graph) and bool(form.pair)

    def macs(self, scene: Scene, step: Step) -> dict[Legs, int]:
        """MACs of one batch element, by the legs they run over."""
        parts, found = recurrence_of(step), Counter[Legs]()
        key, width = str(scene.graph.key), (*parts.features, *parts.own)
        scan = parts.causal(scene.graph)
        query = key if scan else str(scene.graph.query)  # a scan pads queries to the number of keys
        chunk, scored = self._scored_chunk(scene, step)
        if parts.value is not None:
            found[(key, *parts.mixed, *width)] += 1
        found[(*parts.heads, *parts.mixed, *width)] += -(-scene.sizes[key] // chunk) if scan else 1
        found[(query, *parts.heads, *width)] += 1
        if scan:
            if scored:
                found[(query, *parts.heads, *parts.mixed, *parts.features)] += chunk
            if parts.value is not None:
                found[(query, *parts.heads, *parts.mixed, *parts.own)] += chunk
        return dict(found)

    def elementwise(self, scene: Scene, step: Step) -> int:
        """Sums of keys without values, additions to states; if causal also the mask inside chunks, the sums of states,
        and those of the values that mixed heads read."""
        parts = recurrence_of(step)
        batch = scene.batch if step.name in scene.batched else 1
        rows, (chunk, scored) = scene.sizes[str(scene.graph.key)], self._scored_chunk(scene, step)
        found = rows * scene.size((*parts.mixed, *parts.features)) if parts.value is None else 0
        if parts.added is not None:
            found += scene.size(parts.added.legs)
        if parts.causal(scene.graph):
            found += rows * scene.size((*parts.heads, *parts.mixed)) * (chunk * scored + scene.size(parts.own))
            found += -(-rows // chunk) * scene.size((*parts.mixed, *parts.features, *parts.own))
        return batch * found

    def kept(self, scene: Scene, step: Step) -> dict[str, int]:
        return sides_kept(scene, step, self.chunk(scene, step))

    def saved(self, scene: Scene, step: Step) -> dict[str, int]:
        """Floats saved for backward besides operands and result: states, mixed states, and scores inside the chunks."""
        parts = recurrence_of(step)
        batch, causal = scene.batch if step.name in scene.batched else 1, parts.causal(scene.graph)
        rows, width = scene.sizes[str(scene.graph.key)], (*parts.features, *parts.own)
        chunk, scored = self._scored_chunk(scene, step)
        chunks = -(-rows // chunk) if causal else 1
        found = {f"{step.name}: {name}": batch * chunks * scene.size((*legs, *width)) for name, legs in _states(parts)}
        heads = scene.size((*parts.heads, *parts.mixed))
        return found | ({f"{step.name}: scores": batch * rows * chunk * heads} if causal and scored else {})

    def chunk(self, scene: Scene, step: Step) -> int:
        """Keys per chunk of a kernel; 0 if it is not causal."""
        return self._scored_chunk(scene, step)[0] if recurrence_of(step).causal(scene.graph) else 0

    def _scored_chunk(self, scene: Scene, step: Step) -> tuple[int, bool]:
        """Keys per chunk, and whether scores are computed; sums of keys alone use those of their keys and values."""
        parts = recurrence_of(step)
        lead = max(map(recurrence_of, _in_one_call(scene.graph, step)), key=lambda one: one.value is not None)
        return states_chunk(scene.graph, lead, scene.sizes), lead.value == parts.value

    def plain(self, step: Step) -> bool:
        return True

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits one call; the first kernel of a pair calls for both."""
        graph, query, key = writer.graph, str(writer.graph.query), str(writer.graph.key)
        steps = _in_one_call(graph, step)
        if step.name != steps[0].name:
            return
        steps.sort(key=lambda one: recurrence_of(one).value is None)
        each = [recurrence_of(one) for one in steps]
        boxes = " and ".join(parts.box.name for parts in each)
        writer.line(f"# {boxes}: sums over {key} first, mixed over heads; no {query} by {key} tensor is formed")
        parts, (term,) = each[0], each[0].terms
        q = _side(writer, "q", term.query[0], parts.heads, query, parts.features)
        k = _side(writer, "k", term.key[0], parts.mixed, key, parts.features)
        v = _side(writer, "v", parts.value, parts.mixed, key, parts.own)
        mix = _mix(writer, parts.mix, parts.heads, parts.mixed)
        options = ["mask" if takes_mask(graph) else "None", "key_mask", writer.batch_dims]
        if parts.causal(graph):
            options.append(f"causal=True, chunk={states_chunk(graph, parts)}")
        maps = sides_maps(writer, parts)
        if maps != ["None", "None"]:
            options.append(f"maps=({', '.join(maps)})")
        added = [_added_text(writer, own) for own in each]
        values = [
            Value(writer.local[one.name], (*own.heads, query, *own.own), True)
            for one, own in zip(steps, each, strict=True)
        ]
        if any(text != "None" for text in added):
            options.append(f"added={added[0]}" if len(steps) == 1 else f"added=({', '.join(added)})")
        options += cpp_option(writer, step, [step]) if len(steps) > 1 else []
        call = writer.call("mixed_states" if len(steps) == 1 else "mixed_states_and_blockwise", q, k, v, mix, *options)
        unflattened = [
            (split(-1, [*map(writer.size, own.own)]) if own is parts else "")
            + split(-2 - len(own.own), [*map(writer.size, own.heads)])
            for own in each
        ]
        if len(steps) == 1:
            writer.line(f"{values[0].text} = {call}{unflattened[0]}", values[0])
        else:
            shapes = "; ".join(shape_comment(value) for value in values)
            writer.line(f"{', '.join(value.text for value in values)} = {call}  # {shapes}")
            for value, text in zip(values, unflattened, strict=True):
                if text:
                    writer.line(f"{value.text} = {value.text}{text}")
        writer.values |= {one.name: value for one, value in zip(steps, values, strict=True)}


@dataclass(frozen=True)
class Mixed:
    """A sum over the keys that is mixed before queries read it."""

    graph: Graph
    read: Read

    @cached_property
    def found(self) -> tuple[Recurrence | str, tuple[Step, ...]]:
        """The states, or why they cannot be used, and the steps that compute their operands."""
        before: list[Step] = []
        return _recurrence(self.graph, self.read, before), tuple(before)

    @property
    def parts(self) -> Recurrence | str:
        return self.found[0]

    @cached_property
    def made(self) -> Graph:
        """The graph with the states as one kernel."""
        parts, before = self.found
        assert not isinstance(parts, str)
        graph, box, name = self.graph, self.read.box, f"{self.read.box.name}.read"
        assert box.box is not None
        (term,), of, legs = parts.terms, box.box.operand("of"), (*parts.heads, str(graph.query), *parts.own)
        value, mix = (() if use is None else (use,) for use in (parts.value, parts.mix))
        states = [(Use(box.name, box.legs), *mix), *([(parts.added,)] if parts.added else [])]
        inside = Step(of.name, Contraction((Term(ONE, (*term.key, *value)),)), of.legs)
        read = Contraction(tuple(Term(ONE, (*term.query, *state)) for state in states))
        body = (inside, box, Step(name, read, legs))
        own = Step(name, kernel(STATES.kind, graph, before, body, parts), legs)
        found = replace(self.read, terms=()) if parts.added else self.read
        late = [step for step in before if parts.added is None or step.name != parts.added.name]
        early = [step for step in before if step not in late]
        return _paired(
            placed(_early(graph, early), found, [*late, own], Term(found.coefficient, (Use(name, legs),))), name
        )


def _recurrence(graph: Graph, found: Read, before: list[Step]) -> Recurrence | str:
    """The states with one use each for query, key, values and mixture, computed `before`; or why not."""
    name = found.box.name
    query, key = (
        joined(fresh(graph, f"{name}.{side}"), uses, before) for side, uses in (("q", found.query), ("k", found.key))
    )
    value = joined(fresh(graph, f"{name}.v"), found.value, before) if found.value else None
    needed = legs_in((query, key, *((value,) if value else ())))
    mix = joined(fresh(graph, f"{name}.mix"), found.mix, before, needed) if found.mix else None
    pair, features = {graph.query, graph.key}, {*found.features}
    mixed = {*key.legs} - features - pair
    own = ({*value.legs} if value else set()) - mixed - pair
    heads = {*query.legs} - features - pair
    fits = (
        not mixed & heads
        and not own & ({*query.legs} | {*key.legs})
        and (value is None or mixed <= {*value.legs})
        and features <= {*query.legs} & {*key.legs}
        and ({*mix.legs} if mix else set()) <= heads | mixed
        and {*found.legs} - pair - own <= heads
    )
    if not fits:
        return "queries, keys, values and mixing weights do not share heads in the way that mixed states need"
    term = ScoreTerm(ONE, (query,), (key,), width=tuple(leg for leg in key.legs if leg in features))
    outer = tuple(leg for leg in query.legs if leg in heads)
    inner = tuple(leg for leg in (value.legs if value else ()) if leg in own)
    return Recurrence(
        found.box,
        (term,),
        value,
        outer,
        tuple(leg for leg in found.box.legs if leg not in (graph.query, *features, *own)),
        inner,
        mixes=True,
        mix=mix,
        added=_added(found, (*outer, *term.features, *inner), before),
    )


def _added(found: Read, legs: tuple[str, ...], before: list[Step]) -> Use | None:
    """The terms that are added to the state, as a step; None if queries read them on their own: they lack some leg."""
    used = legs_in(use for term in found.terms for use in term.factors)
    outside = used & {*found.between.legs} if found.between else used
    if not found.terms or found.coefficient != ONE or outside != {*legs}:
        return None
    before.append(Step(f"{found.box.name}.added", Contraction(found.terms), legs))
    return Use(before[-1].name, legs)


def _early(graph: Graph, added: Sequence[Step]) -> Graph:
    """The graph with these steps as soon as their operands are known, so that kernels that need them share a call."""
    for step in added:
        read = {use.name for use in step.op.uses}
        place = max((at + 1 for at, other in enumerate(graph.steps) if other.name in read), default=0)
        graph = replace(graph, steps=(*graph.steps[:place], step, *graph.steps[place:]))
    return graph


STATES = States()


def _paired(graph: Graph, name: str) -> Graph:
    """The graph in which one call computes a kernel and another with the same keys, if one of the two has values."""
    for other in graph.steps:
        if not isinstance(other.form, Recurrence) or not other.form.mixes or other.form.pair:
            continue
        pair = first, second = sorted((graph.step[name], other), key=graph.steps.index)
        one, two = map(recurrence_of, pair)
        between = graph.steps[graph.steps.index(first) : graph.steps.index(second)]
        if (
            (one.value is None) != (two.value is None)
            and (one.terms, one.mix, one.heads) == (two.terms, two.mix, two.heads)
            and {*graph.masks(one.box)} == {*graph.masks(two.box)}
            and not {step.name for step in between} & {use.name for use in second.op.uses}
        ):
            names = first.name, second.name
            new = [(s, replace(s.kernel, form=replace(recurrence_of(s), pair=names))) for s in pair if s.kernel]
            return with_steps(graph, {step.name: [replace(step, op=op)] for step, op in new})
    return graph


def _in_one_call(graph: Graph, step: Step) -> list[Step]:
    """The kernel, or both of its pair, in the order of the schedule."""
    return [graph.step[name] for name in recurrence_of(step).pair] or [step]


def states_chunk(graph: Graph, parts: Recurrence, sizes: Mapping[str, int] | None = None) -> int:
    """Keys per chunk: fewer than in linear attention, by the number of mixed heads with scores inside a chunk."""
    known = {leg.name: leg.size or 1 for leg in graph.legs} | dict(sizes or {})
    root: int = 2 ** round(log2(prod(known[leg] for leg in (*parts.features, *parts.own))) / 2)
    return min(max(root // prod(known[leg] for leg in parts.mixed), CHUNKS[0]), CHUNKS[1])


def _states(parts: Recurrence) -> tuple[tuple[str, Legs], ...]:
    return ("states", parts.mixed), ("mixed states", parts.heads)


def _side(writer: Writer, name: str, use: Use | None, heads: Legs, sequence: str, columns: Legs) -> str:
    """The name of an operand laid out as [heads, sequence, columns], with heads flattened."""
    return "None" if use is None else writer.operand(name, unmapped(writer, use)[0], (heads, (sequence,), columns))


def _added_text(writer: Writer, parts: Recurrence) -> str:
    """The name of what is added to the states of the heads, laid out as they are."""
    groups = parts.heads, parts.features, parts.own
    return "None" if parts.added is None else writer.operand("E", writer.value(parts.added), groups)


def _mix(writer: Writer, use: Use | None, heads: Legs, mixed: Legs) -> str:
    """The mixture as a matrix [heads, mixed heads]."""
    sizes = [" * ".join(map(writer.size, legs)) or "1" for legs in (heads, mixed)]
    if use is None:
        return f"{writer.like.text}.new_ones({', '.join(sizes)})"
    value = writer.value(use)
    missing = {*heads, *mixed} - {*value.legs}
    value = value.aligned((*heads, *mixed), whole=True) if missing else value
    text = value.grouped((heads, mixed))
    return f"({text}).expand({', '.join(sizes)})" if missing else text
