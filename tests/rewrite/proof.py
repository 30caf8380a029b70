"""Exact proofs that two graphs are one function: both are evaluated modulo primes, at points drawn anew.

Values are numbers modulo P. Arguments of exp are numbers modulo Q as well, a prime that divides P - 1: exp(x) is W ** x
with W of order Q, so that exp(x) exp(y) = exp(x + y) holds, as it would not with one prime. Logarithms carry the number
of which they are one. The sign of a value is whether it is a square modulo P: signs of products are products of signs,
and that of -1 is -1, which is all that rewrites know of relu and abs; so are those of products of primes up to 31.
Of other functions, as of a second exp on a path, nothing is assumed but that equal arguments give equal values: such a
proof holds for any functions.

A false identity of sums, products and quotients holds at one point by chance with a probability of at most D / P, D the
degree (Schwartz and Zippel), and two different arguments of exp agree with D / Q: less than 2 ** -40 for degrees below
2 ** 20. Points are independent: two make it 2 ** -80. There is no such bound for sums of several powers of W that are
zero by chance, and signs agree by chance at half of the places; but a result has many places, and all must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import blake2b
from itertools import product

import torch

from tensornet_attn.graph.graph import Box, Function, Graph, Kernel, Step, Tensor, Term, Use
from tensornet_attn.graph.visibility import numbers, parts_of
from tensornet_attn.ir.arithmetic import ONE, Arith, Binary, Name, Negative, Number, evaluate, to_text
from tensornet_attn.ir.steps import LOGIC
from tensornet_attn.ops import MASKS
from tensornet_attn.ops.conv import left_of
from tensornet_attn.rewrite.fused import FusedAttention

P, Q, W = 2305811687022643439, 1152905843511321719, 4  # P = 2 Q + 1; squares have order Q
POINTS = 2
SIGN = "sign"
WHOLE = 2**20  # numbers drawn are further from zero

Legs = tuple[str, ...]
Place = tuple[int, ...]
Value = tuple[int, int | None, int | None]  # modulo P; modulo Q; exp of it modulo P, of logarithms
ZERO: Value = (0, 0, None)
UNIT: Value = (1, 1, None)


@dataclass(frozen=True)
class Verdict:
    """Whether two graphs are one function; `free`: the functions of which nothing but that was assumed.

    Graphs that differ are not the same function if `free` is empty; else the prover cannot tell.
    """

    differs: str | None
    free: frozenset[str]

    @property
    def proved(self) -> bool:
        return self.differs is None

    def __str__(self) -> str:
        functions = ", ".join(sorted(self.free))
        if self.differs is None:
            return f"proved for any {functions}" if functions else "proved"
        return (
            f"not proved: '{self.differs}' differs for some {functions}" if functions else f"'{self.differs}' differs"
        )


def prove(before: Graph, after: Graph, points: int = POINTS) -> Verdict:
    """Compares outputs, states and losses of two graphs, with masks of the design and of a call.

    >>> from tensornet_attn import load
    >>> from tensornet_attn.graph import build
    >>> graph = build(load("mhsa", legs={"f": 8, "h": 2}))
    >>> str(prove(graph, graph))
    'proved for any d ** -0.5'
    """
    verdict, certain = _compared(before, after, points, signs=True)
    return verdict if certain else _compared(before, after, points, signs=False)[0]


def _compared(before: Graph, after: Graph, points: int, signs: bool) -> tuple[Verdict, bool]:
    """The verdict, and whether every number has its sign modulo P, if that matters."""
    differs, free, strange = None, set[str](), set[str]()
    for point in range(points):
        runs = [_Run(graph, before.tied or after.tied, point, signs) for graph in (before, after)]
        values = [run.results() for run in runs]
        differs = differs or next((n for n in sorted(before.results) if values[0][n] != values[1].get(n)), None)
        free |= runs[0].free | runs[1].free
        strange |= runs[0].strange | runs[1].strange
    return Verdict(differs, frozenset(free - {SIGN})), SIGN not in free or not strange


def plus(a: Value, b: Value) -> Value:
    total = (a[0] + b[0]) % P, None if a[1] is None or b[1] is None else (a[1] + b[1]) % Q
    if a[2] is None and b[2] is None:
        return *total, None
    powers = [_power(a), _power(b)]
    return *total, None if None in powers else powers[0] * powers[1] % P  # type: ignore[operator]


def times(a: Value, b: Value) -> Value:
    log = a[2] is not None or b[2] is not None
    power = (_raised(a, b) if a[2] is not None else _raised(b, a)) if log else None
    return a[0] * b[0] % P, None if a[1] is None or b[1] is None else a[1] * b[1] % Q, power


def _raised(log: Value, by: Value) -> int | None:
    """exp of a logarithm times a whole number."""
    whole = by[0] if by[0] < WHOLE else by[0] - P
    return pow(log[2] or 0, whole, P) if abs(whole) < WHOLE else None


def sign(a: Value) -> int:
    """1, -1, or 0 for zero."""
    return 0 if a[0] == 0 else 1 if pow(a[0], Q, P) == 1 else -1


def inverse(a: Value) -> Value:
    """One over a value; zero for zero."""
    return pow(a[0], -1, P) if a[0] else 0, None if a[1] is None else pow(a[1], -1, Q) if a[1] else 0, None


def total(values: Iterable[Value]) -> Value:
    found = ZERO
    for value in values:
        found = plus(found, value)
    return found


def shares(values: list[Value], more: Value) -> list[Value]:
    """Each value over the sum of all."""
    over = inverse(plus(total(values), more))
    return [times(value, over) for value in values]


def _power(a: Value) -> int | None:
    """exp of a value modulo P, where it is known."""
    return a[2] if a[2] is not None else None if a[1] is None else pow(W, a[1], P)


def exact(number: Fraction | int) -> Value:
    p, q = (number.numerator * pow(number.denominator, -1, prime) % prime for prime in (P, Q))
    return p, q, None


@dataclass(frozen=True)
class _Block:
    """The entries of a tensor or step by their places on its legs."""

    legs: Legs
    entries: Mapping[Place, Value]

    def at(self, where: Mapping[str, int]) -> Value:
        return self.entries[tuple(where[leg] for leg in self.legs)]


@dataclass
class _Run:
    """One evaluation of a graph. `free`: functions whose values were drawn; `strange`: numbers of the wrong sign."""

    graph: Graph
    tied: bool
    point: int
    signs: bool
    strange: set[str] = field(default_factory=set)
    free: set[str] = field(default_factory=set)
    values: dict[str, _Block] = field(default_factory=dict)
    drawing: int = 0

    def results(self) -> dict[str, list[int]]:
        """What is wanted of the graph, modulo P, legs in alphabetical order."""
        for tensor in self.graph.tensors:
            self.values[tensor.name] = self.leaf(tensor)
        for step in self.graph.steps:
            self.values[step.name] = self.step(step)
        blocks = {name: self.values[name] for name in self.graph.results}
        return {name: [block.at(at)[0] for at in self.places(sorted(block.legs))] for name, block in blocks.items()}

    # Sizes, numbers, positions

    def size(self, leg: str) -> int:
        own = self.graph.leg[leg]
        if own.sequence:
            return min(own.maximum or 3, 2 if own.kind == "query" and not self.tied else 3)
        return own.size or self.size(str(self.graph.query)) + self.size(str(self.graph.key)) - 1

    def places(self, legs: Iterable[str]) -> list[dict[str, int]]:
        legs = tuple(legs)
        return [dict(zip(legs, place, strict=True)) for place in product(*(range(self.size(leg)) for leg in legs))]

    def position(self, leg: str, place: int) -> int:
        own, query, key = self.graph.leg[leg], self.graph.query, self.graph.key
        if own.kind == "query":
            return place + (self.size(key) - self.size(leg) if key else 0)
        if own.kind == "relative":
            return place - (self.size(str(query)) - 1 if own.reach is None else own.reach)
        return place

    def plain(self, tree: Arith) -> int | float:
        sizes = {leg.name: self.size(leg.name) for leg in self.graph.legs if leg.sequence}
        return evaluate(tree, {**self.graph.values, **sizes})

    def number(self, tree: Arith) -> Value:
        """Arithmetic; roots and logarithms are numbers of which nothing is known."""
        if isinstance(tree, Negative):
            return times(exact(-1), self.number(tree.of))
        if isinstance(tree, Number | Name):
            value, made = self.plain(tree), exact(Fraction(f"{self.plain(tree):.14g}"))
            self.strange |= {to_text(tree)} if value and (value > 0) != (sign(made) > 0) else set()
            return made
        if isinstance(tree, Binary) and tree.op in "+-*/":
            left, right = self.number(tree.left), self.number(tree.right)
            right = inverse(right) if tree.op == "/" else times(exact(-1), right) if tree.op == "-" else right
            return (plus if tree.op in "+-" else times)(left, right)
        value = self.plain(tree)
        if isinstance(value, int):
            return exact(value)
        if isinstance(tree, Binary) and tree.op == "**" and isinstance(power := self.plain(tree.right), int):
            base = self.number(tree.left)
            return pow(base[0], power, P), pow(base[1] or 0, power, Q), None
        self.free.add(to_text(tree))
        drawn = self.drawn("number", f"{abs(value):.14g}")
        return times(exact(1 if value > 0 else -1), times(drawn, drawn))

    def drawn(self, *key: object) -> Value:
        """A number of the point, the same for the same key."""
        digest = blake2b(repr((self.point, key)).encode(), digest_size=32).digest()
        p, q = (int.from_bytes(part, "little") for part in (digest[:16], digest[16:]))
        return p % P, q % Q, None

    def any(self, name: str, *key: object) -> Value:
        """The value of a function of which nothing is assumed."""
        self.free.add(name)
        return self.drawn(name, *key)

    # Leaves

    def leaf(self, tensor: Tensor) -> _Block:
        groups = tensor.stored or tuple((leg,) for leg in tensor.legs)
        entry = self.constant(tensor) if tensor.role == "constant" else lambda place: self.drawn(tensor.name, place)
        entries = {}
        for at in self.places(tensor.legs):
            place = tuple(_flat([at[leg] for leg in group], [self.size(leg) for leg in group]) for group in groups)
            entries[tuple(at.values())] = entry(place)
        return _Block(tensor.legs, entries)

    def constant(self, tensor: Tensor) -> Callable[[Place], Value]:
        init, legs = tensor.init, tensor.legs
        assert init is not None
        if init.name in ("position", "distance"):
            signs = [1 if leg == self.graph.query or init.name == "position" else -1 for leg in legs]
            return lambda place: exact(
                sum(s * self.position(leg, i) for s, leg, i in zip(signs, legs, place, strict=True))
            )
        if init.name == "full":
            return lambda place: self.number(init.arguments[0])  # type: ignore[arg-type]
        if init.name in ("ones", "zeros"):
            return lambda place: exact(init.name == "ones")
        sizes = [self.size(leg) for leg in legs]
        if init.name in ("eye", "kron"):
            entries = self.matrix(init, sizes)
            return lambda place: exact(entries[place[0]][place[1]])
        return lambda place: self.any(init.name, sizes, place)

    def matrix(self, function: Function, sizes: Sequence[int]) -> list[list[int]]:
        """The entries of eye, ones, or of the Kronecker product of two such."""
        if function.name == "kron":
            parts = [self.matrix(part, ()) for part in function.arguments]  # type: ignore[arg-type]
            return [[a * b for a in left for b in right] for left in parts[0] for right in parts[1]]
        sizes = [int(self.plain(part)) for part in function.arguments] or sizes  # type: ignore[arg-type]
        return [[int(function.name == "ones" or i == j) for j in range(sizes[-1])] for i in range(sizes[0])]

    # Steps

    def step(self, step: Step) -> _Block:
        if step.contraction is not None:
            return self.sum(step.contraction.terms, step.legs)
        if step.box is not None:
            return self.box(step, step.box)
        assert step.kernel is not None
        if isinstance(step.form, FusedAttention):  # its call is made of the form
            return self.attention(step, step.form)
        return self.kernel(step, step.kernel)

    def sum(self, terms: Iterable[Term], legs: Legs) -> _Block:
        parts = [self.product(term, legs) for term in terms]
        return _Block(legs, {tuple(at.values()): total(part.at(at) for part in parts) for at in self.places(legs)})

    def product(self, term: Term, legs: Legs) -> _Block:
        """A product, summed factor by factor over legs that neither the result nor a later factor has."""
        found = _Block((), {(): self.number(term.coefficient)})
        for i, use in enumerate(term.factors):
            later = {*legs, *(leg for other in term.factors[i + 1 :] for leg in other.legs)}
            found = self.joined(found, self.read(use), later)
        return found

    def joined(self, left: _Block, right: _Block, needed: set[str]) -> _Block:
        shared = [leg for leg in right.legs if leg in left.legs]
        kept = tuple(leg for leg in dict.fromkeys((*left.legs, *right.legs)) if leg in needed)
        entries: dict[Place, Value] = {}
        by_shared: dict[Place, list[tuple[Place, Value]]] = {}
        for place, value in right.entries.items():
            key = tuple(place[right.legs.index(leg)] for leg in shared)
            by_shared.setdefault(key, []).append((place, value))
        for place, value in left.entries.items():
            for other, factor in by_shared.get(tuple(place[left.legs.index(leg)] for leg in shared), ()):
                at = dict(zip((*left.legs, *right.legs), (*place, *other), strict=True))
                key = tuple(at[leg] for leg in kept)
                entries[key] = plus(entries.get(key, ZERO), times(value, factor))
        return _Block(kept, entries)

    def read(self, use: Use) -> _Block:
        """What is used, under the names of its legs here; of a leg that it has twice, the diagonal."""
        entries, legs = self.values[use.name].entries, tuple(dict.fromkeys(use.legs))
        if legs == use.legs:
            return _Block(legs, entries)
        at = {place: dict(zip(use.legs, place, strict=True)) for place in entries}
        diagonal = [p for p in entries if p == tuple(at[p][leg] for leg in use.legs)]
        return _Block(legs, {tuple(at[p][leg] for leg in legs): entries[p] for p in diagonal})

    def kernel(self, step: Step, kernel: Kernel) -> _Block:
        """Features side by side on one leg; of any other kernel the steps that it does at once."""
        outside = dict(self.values)
        for part in kernel.body:
            self.values[part.name] = self.step(part)
        blocks, self.values = [self.values[part.name] for part in kernel.body], outside
        if kernel.kind != "join":
            return blocks[-1]
        wide, entries = step.legs[-1], dict[Place, Value]()
        for at in self.places(step.legs[:-1]):
            columns = [block.at({**at, **own}) for block in blocks for own in self.own_places(block.legs, at)]
            entries |= {(*at.values(), i): value for i, value in enumerate(columns)}
        assert len(columns) == self.size(wide)
        return _Block(step.legs, entries)

    def own_places(self, legs: Legs, shared: Iterable[str]) -> list[dict[str, int]]:
        return self.places(leg for leg in legs if leg not in {*shared})

    def attention(self, step: Step, op: FusedAttention) -> _Block:
        legs = (*op.scores, *(leg for leg in op.beside if leg not in op.scores))
        scores, weights = (Use(f"{step.name} {part}", legs) for part in ("scores", "weights"))
        numbers = (("scale", op.scale), ("dropout", op.dropout))
        operands = (("of", scores), *([("sink", op.sink)] if op.sink else []))
        box = Box("softmax", op.leg, operands, numbers, op.masks, other=(*op.beside, None)[0])
        self.values[scores.name] = self.sum([Term(ONE, (op.query, op.key))], legs)
        self.values[weights.name] = self.box(Step(weights.name, box, legs), box)
        return self.sum([Term(ONE, (weights, op.value))], step.legs)

    # Boxes

    def box(self, step: Step, box: Box) -> _Block:
        blocks = {role: self.read(use) for role, use in box.operands}
        draws = "dropout" in dict(box.numbers) and self.plain(box.number("dropout")) != 0
        self.drawing += draws
        along = [leg for leg in (box.leg, box.other) if leg is not None]
        inside = self.places(leg for leg in along if leg in box.uses[0].legs)
        rows: dict[Place, Value | list[Value]] = {}
        entries = {}
        for at in self.places(step.legs):
            if box.kind == "conv":
                value = self.convolved(step, box, blocks, at)
            elif box.kind in ALONE:
                value = ALONE[box.kind](self, box, blocks, at)
            else:
                key = tuple(i for leg, i in at.items() if leg not in along)
                row = rows[key] if key in rows else rows.setdefault(key, self.row(step, box, blocks, at, inside))
                value = row if isinstance(row, tuple) else row[inside.index({leg: at[leg] for leg in inside[0]})]
            place = tuple(at.values())
            entries[place] = times(value, self.any("dropout", self.drawing, place)) if draws else value
        return _Block(step.legs, entries)

    def row(
        self, step: Step, box: Box, blocks: Mapping[str, _Block], at: Mapping[str, int], inside: list[dict[str, int]]
    ) -> Value | list[Value]:
        """What a box gives along its leg: one value, or one for each place there."""
        places = [{**at, **one} for one in inside]
        values = [blocks["of"].at(place) for place in places]
        seen = [not self.graph.masked(step) or self.sees(step, place) for place in places]
        kept = [value if own else ZERO for value, own in zip(values, seen, strict=True)]
        some = [value for value, own in zip(values, seen, strict=True) if own]
        if box.kind == "softmax":
            scale = self.number(box.number("scale"))
            powers = [self.exp(times(scale, value)) if own else ZERO for value, own in zip(values, seen, strict=True)]
            return shares(powers, self.exp(blocks["sink"].at(at)) if "sink" in blocks else ZERO)
        if box.kind == "normalize":
            return shares(kept, self.number(box.number("eps")))
        if box.kind == "keep":
            return kept
        if box.kind in ("cumsum", "reverse_cumsum"):
            starts = range(len(kept))
            return [total(kept[: i + 1] if box.kind == "cumsum" else kept[i:]) for i in starts]
        if box.kind in ("sum", "mean"):
            return times(total(kept), inverse(exact(len(some))) if box.kind == "mean" else UNIT)
        if box.kind == "logsumexp":
            return self.log(total(map(self.exp, some))) if some else ZERO
        if box.kind == "max":
            return self.any("max", sorted(value[0] for value in some)) if some else ZERO
        numbers = [self.plain(number) for _, number in box.numbers]
        every = [blocks[role].at(place)[0] for role in sorted(blocks) for place in places]
        return [self.any(box.kind, numbers, every, i) for i in range(len(values))]

    def convolved(self, step: Step, box: Box, blocks: Mapping[str, _Block], at: Mapping[str, int]) -> Value:
        """The sum of taps, each at a position of its own, that are there and not hidden."""
        along, taps = str(box.leg), self.size(str(box.other))
        left, found = left_of(self.graph, box, taps), ZERO
        for tap in range(taps):
            place = {**at, str(box.other): tap, along: at[along] + tap - left}
            there = 0 <= place[along] < self.size(along)
            if there and (not self.graph.masked(step) or self.sees(step, place)):
                weight = blocks["weight"].at(place) if "weight" in blocks else UNIT
                found = plus(found, times(weight, blocks["of"].at(place)))
        return found

    def sees(self, step: Step, at: Mapping[str, int]) -> bool:
        """Whether a key counts: the masks of the design, one of a call by query and key, and one of keys."""
        query, key = str(self.graph.query), str(self.graph.key)
        if self.hidden("key mask", at[key]) or query not in at:
            return not self.hidden("key mask", at[key])
        pair = torch.tensor(self.position(query, at[query])), torch.tensor(at[key])
        shown = all(self.shows(mask, *pair) for mask in self.graph.masks(step))
        return shown and not self.hidden("mask", at[query], at[key])

    def shows(self, mask: Function, query: torch.Tensor, key: torch.Tensor) -> bool:
        """Whether a mask, or a formula of masks, shows a pair of positions."""
        if mask.name not in LOGIC:
            return bool(MASKS[mask.name].reference(query, key, *numbers(mask, self.graph.values)))
        parts = [self.shows(part, query, key) for part in parts_of(mask)]
        return not parts[0] if mask.name == "not" else all(parts) if mask.name == "and" else any(parts)

    def hidden(self, mask: str, *place: int) -> bool:
        return self.drawn(mask, place)[0] % 8 == 0

    def exp(self, value: Value) -> Value:
        power = _power(value)
        return self.any("exp of what has an exp inside", value[0])[0] if power is None else power, None, None

    def log(self, value: Value) -> Value:
        return *self.any("log", value[0])[:2], value[0]

    def mapped(self, box: Box, blocks: Mapping[str, _Block], at: Mapping[str, int]) -> Value:
        function, value = box.function, blocks["of"].at(at)
        assert function is not None
        exactly = {"exp": self.exp, "log": self.log, "reciprocal": inverse}.get(function.name)
        if exactly is not None:
            return exactly(value)
        if function.name == "sigmoid" and value[2] is not None:
            power = (value[2], None, None)
            return times(power, inverse(plus(power, UNIT)))
        if self.signs and function.name in ("relu", "abs"):
            self.free.add(SIGN)
            share = Fraction(sign(value) + 1, 2) if function.name == "relu" else Fraction(sign(value))
            return *times(exact(share), value)[:2], None
        numbers = [2] if function.name == "square" else [self.plain(n) for n in function.arguments]  # type: ignore[arg-type]
        if function.name in ("square", "power") and isinstance(numbers[0], int) and numbers[0] > 0:
            return pow(value[0], numbers[0], P), None if value[1] is None else pow(value[1], numbers[0], Q), None
        return self.any(function.name, numbers, value[0])

    def shifted(self, box: Box, blocks: Mapping[str, _Block], at: Mapping[str, int]) -> Value:
        along, query, key = str(box.leg), str(self.graph.query), str(self.graph.key)
        distance = self.position(query, at[query]) - self.position(key, at[key])
        place = min(max(distance - self.position(along, 0), 0), self.size(along) - 1)
        return blocks["of"].at({**at, along: place})

    def one_leg(self, box: Box, blocks: Mapping[str, _Block], at: Mapping[str, int]) -> Value:
        """Of legs that are one: the entry at the places on each."""
        place, found = at[str(box.leg)], dict(at)
        for leg in reversed(box.parts):
            place, found[leg] = divmod(place, self.size(leg))
        return blocks["of"].at(found)

    def many_legs(self, box: Box, blocks: Mapping[str, _Block], at: Mapping[str, int]) -> Value:
        place = _flat([at[leg] for leg in box.parts], [self.size(leg) for leg in box.parts])
        return blocks["of"].at({**at, str(box.leg): place})

    def remembered(self, box: Box, blocks: Mapping[str, _Block], at: Mapping[str, int]) -> Value:
        """A delta rule or a scan: any function of what its operands have for one entry of the values, at all steps."""
        legs = [leg for leg in dict(box.operands).get("value", box.uses[0]).legs if leg not in (box.leg, box.other)]
        masks = [self.hidden("key mask", i) for i in range(self.size(str(box.leg)))]
        own = [self.places(leg for leg in block.legs if leg not in legs) for block in blocks.values()]
        pairs = zip(blocks.values(), own, strict=True)
        values = [[block.at({**at, **place})[0] for place in places] for block, places in pairs]
        numbers = [self.plain(number) for _, number in box.numbers]
        return self.any(box.kind, box.mode, numbers, [*blocks], masks, at[str(self.graph.query)], values)


ALONE: dict[str, Callable[[_Run, Box, Mapping[str, _Block], Mapping[str, int]], Value]] = {
    "map": _Run.mapped,
    "dropout": lambda run, box, blocks, at: blocks["of"].at(at),
    "rel_shift": _Run.shifted,
    "join": _Run.one_leg,
    "split": _Run.many_legs,
    "delta_rule": _Run.remembered,
    "scan": _Run.remembered,
}


def _flat(place: Sequence[int], sizes: Sequence[int]) -> int:
    found = 0
    for i, size in zip(place, sizes, strict=True):
        found = found * size + i
    return found
