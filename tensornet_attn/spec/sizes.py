"""Resolves the sizes of legs and the values of settings; reports unknown names, cycles and invalid sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import chain

from tensornet_attn import limits
from tensornet_attn.ir.arithmetic import Arith, Negative, Number, evaluate, names, parse, to_text, with_constants
from tensornet_attn.ir.tokens import Refusal, Span
from tensornet_attn.spec.names import identifier_problem
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.report import Reporter, meant, words

KINDS = ("query", "key", "relative", "head")
SPELLINGS = {"shared": "head"}  # synonyms of kinds
Written = int | float | str  # a size, or arithmetic over sizes


@dataclass(frozen=True)
class Leg:
    """A leg's name, kind and size.

    `size` is None for a leg sized at run time: query, key, and relative without a reach.
    `maximum` is the 256 of `key 256`; `reach` is the 32 of `relative 32`, whose size is 65.
    `text` is the size as written, such as `f / h`; None if there is none.
    """

    name: str
    kind: str  # size, query, key, relative or head
    size: int | None = None
    maximum: int | None = None
    reach: int | None = None
    text: Arith | None = None

    @property
    def sequence(self) -> bool:
        return self.kind in ("query", "key")

    @property
    def stored(self) -> int | None:
        """The size of a weight on this leg; None if a weight cannot have the leg."""
        return self.maximum if self.sequence else self.size


@dataclass
class Sizes:
    """The legs and settings of a design. Names in `broken` have no usable value.

    `values` maps names to resolved values. `blind`: the settings could not be read at all.
    """

    reporter: Reporter
    legs: dict[str, Leg] = field(default_factory=dict)
    settings: dict[str, int | float] = field(default_factory=dict)
    values: dict[str, int | float] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    strange: set[str] = field(default_factory=set)  # undeclared names that resemble no declared name
    trees: dict[str, Arith] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    blind: bool = False

    @classmethod
    def of(
        cls,
        legs: Mapping[str, Written],
        settings: Mapping[str, Written],
        reporter: Reporter,
        broken: Iterable[str] = (),
        blind: bool = False,
    ) -> Sizes:
        """Resolves the declared legs and settings and reports problems, except those of `broken` names."""
        sizes = cls(reporter, broken=set(broken), blind=blind)
        for name in sizes.broken:
            sizes.legs[name] = Leg(name, "size")
        sizes._declare(legs, settings)
        sizes._resolve()
        return sizes

    def _declare(self, legs: Mapping[str, Written], settings: Mapping[str, Written]) -> None:
        for name, written in settings.items():
            self._name(name, ("settings", name))
            self.settings[name] = 0
            self._parse(name, written, ("settings", name), 0)
        for name, written in legs.items():
            path = ("legs", name)
            if name in self.settings:
                hint = "rename one of them: legs and settings share a namespace."
                self.reporter.error("name-taken", f"'{name}' is already a setting.", path, key=True, hint=hint)
                self._lose(Leg(name, "size"))
            else:
                self._name(name, path)
                self._leg(name, written, path)

    def _name(self, name: str, path: Path) -> None:
        problem = identifier_problem(name)
        if problem:
            self.reporter.error("name", problem[0], path, key=True, hint=problem[1])
            self.used.add(name)

    def _lose(self, leg: Leg) -> None:
        self.legs[leg.name] = leg
        self.broken.add(leg.name)

    def _leg(self, name: str, written: int | float | str, path: Path) -> None:
        kind, size, shift = _split(written)
        earlier = next((leg for leg in self.legs.values() if leg.kind == kind), None)
        if earlier and kind in ("query", "key"):
            message = f"'{name}' is a second {kind} leg beside '{earlier.name}'."
            self.reporter.error("two-sequences", message, path, hint=f"declare at most one {kind} leg.")
            self._lose(Leg(name, "size"))
            return
        self.legs[name] = Leg(name, kind)
        if size is not None:
            self._parse(name, size, path, shift)
        elif kind == "head":
            word = str(written).strip()
            self.reporter.error("bad-size", f"{word} leg '{name}' has no size.", path, hint=f"e.g. '{name}: {word} 8'.")
            self.broken.add(name)

    def _parse(self, name: str, written: int | float | str, path: Path, shift: int) -> None:
        self.paths[name] = path
        try:
            self.trees[name] = parse(written)
        except Refusal as problem:
            self.reporter.syntax(self._kind_problem(str(written), path) or problem, path, shift)
            self.broken.add(name)
            self.used |= words(written)

    def _kind_problem(self, written: str, path: Path) -> Refusal | None:
        """A syntax error that suggests the kind `head` for `heads 8`; None if the word resembles no kind."""
        word = written.split()[0] if path[0] == "legs" and written.strip() else ""
        hint = self.reporter.nearest(word, KINDS)
        if meant(hint) is None:
            return None
        return Refusal("syntax", f"there is no kind of leg '{word}'.", hint, (0, len(word)))

    def _resolve(self) -> None:
        """Resolves values in the order of their dependencies; the remaining ones are on cycles or depend on a cycle."""
        declared = {*self.legs, *self.settings}
        self.trees = {name: with_constants(tree, declared) for name, tree in self.trees.items()}
        waiting = {name: {used.name for used in names(tree)} for name, tree in self.trees.items()}
        self.used.update(*waiting.values())
        for name in waiting:
            self._unknown(name)
        order = TopologicalSorter({name: uses & waiting.keys() for name, uses in waiting.items()})
        with suppress(CycleError):
            order.prepare()
        while ready := order.get_ready():
            for name in ready:
                self._value(name)
                del waiting[name]
            order.done(*ready)
        self._circles({name: uses & waiting.keys() for name, uses in waiting.items()})

    def missing(self, name: str, besides: str = "", settings: bool = True) -> str:
        """The hint for an undeclared name: similar legs, and `settings`. A name that it suggests counts as used.

        A name that resembles no declared name becomes broken, so that it is reported once.
        """
        names = chain(self.legs, self.settings if settings else ())
        candidates = (candidate for candidate in names if candidate != besides and candidate not in self.strange)
        hint = self.reporter.nearest(name, candidates)
        self.used.add(meant(hint) or "")
        if meant(hint) is None:
            self.strange.add(name)
            self._lose(Leg(name, "size"))
        return hint

    def _unknown(self, name: str) -> None:
        """Reports the first name in a size that is undeclared or sized at run time."""
        path = self.paths[name]
        shift = _split(self._written(name))[2] if path[0] == "legs" else 0
        for used in names(self.trees[name]):
            leg = self.legs.get(used.name)
            span: Span = (used.span[0] + shift, used.span[1] + shift)
            if leg is None and used.name not in self.settings:
                if not self.blind:
                    kind = self.reporter.nearest(used.name, KINDS) if path[0] == "legs" else ""
                    hint = kind if meant(kind) else self.missing(used.name, name)
                    message = f"there is no leg or setting '{used.name}'."
                    self.reporter.error("unknown-leg", message, path, hint=hint, span=span)
            elif leg is not None and leg.kind in ("query", "key", "relative"):
                message = f"leg '{used.name}' is sized at run time; a size cannot depend on it."
                hint = "declare the number in 'settings' and use its name."
                self.reporter.error("run-time-leg", message, path, hint=hint, span=span)
            else:
                continue
            self.broken.add(name)
            return

    def _written(self, name: str) -> int | float | str:
        value = self.reporter.document.value(self.paths[name])
        return value if isinstance(value, (int, float, str)) else ""

    def _value(self, name: str) -> None:
        """Evaluates one size or setting."""
        tree = self.trees[name]
        if name in self.broken or any(used.name in self.broken for used in names(tree)):
            self.broken.add(name)
            return
        try:
            value = evaluate(tree, self.values)
        except Refusal as problem:
            self.reporter.error(problem.code, problem.message, self.paths[name], hint=problem.hint)
            self.broken.add(name)
            return
        if name in self.legs:
            self._size(self.legs[name], value, tree)
        else:
            self.settings[name] = self.values[name] = value

    def _size(self, leg: Leg, size: int | float, tree: Arith) -> None:
        if not isinstance(size, int) or not 1 <= size <= limits.SIZE:
            number = f"{size:.6g}" if isinstance(size, float) or abs(size) > 10**18 else str(size)
            equal = "" if isinstance(tree, (Number, Negative)) else f"{to_text(tree)} = "
            message = f"leg '{leg.name}' is {equal}{number}, which is not a valid size."
            hint = f"use a whole number from 1 to {limits.SIZE}."
            self.reporter.error("bad-size", message, self.paths[leg.name], hint=hint)
            self.broken.add(leg.name)
            return
        changes: dict[str, object] = {"text": tree}
        if leg.kind == "relative":
            changes |= {"reach": size, "size": 2 * size + 1}
        else:
            changes["maximum" if leg.sequence else "size"] = size
        leg = self.legs[leg.name] = replace(leg, **changes)  # type: ignore[arg-type]
        if leg.size is not None:
            self.values[leg.name] = leg.size

    def _circles(self, waiting: dict[str, set[str]]) -> None:
        """Reports each cycle once, at its first name. Names that only lead into a cycle are not reported."""
        order = {name: position for position, name in enumerate(waiting)}
        visited: set[str] = set()
        for start in waiting:
            trail: dict[str, int] = {}
            name = start
            while name not in visited and name not in trail:
                trail[name] = len(trail)
                name = min(waiting[name], key=order.__getitem__)
            if name in trail:
                circle = list(trail)[trail[name] :]
                earliest = circle.index(min(circle, key=order.__getitem__))
                circle = [*circle[earliest:], *circle[:earliest]]
                arrows = " -> ".join([*circle[:8], *["..."] * (len(circle) > 8), circle[0]])
                message, path = f"the size of '{circle[0]}' depends on itself: {arrows}.", self.paths[circle[0]]
                self.reporter.error("circular-size", message, path, hint="set one of them to a number.")
            visited.update(trail)
        self.broken.update(waiting)


def _split(written: int | float | str) -> tuple[str, int | float | str | None, int]:
    """`head 8` as (kind, text of the size, offset of the size)."""
    if not isinstance(written, str):
        return "size", written, 0
    word, *size = written.split(maxsplit=1) or [""]
    kind = SPELLINGS.get(word, word)
    if kind not in KINDS:
        return "size", written, 0
    return (kind, size[0], written.index(size[0], len(word))) if size else (kind, None, 0)
