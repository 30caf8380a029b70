"""The state of building a diagram: the sizes, tensors and steps so far, and the broken names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tensornet_attn.ir.arithmetic import Arith, Binary, Name, evaluate, names, parse, with_constants
from tensornet_attn.ir.steps import Box, Function, Step, Tensor, Use, without
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ops.join import apart_of
from tensornet_attn.spec.design import Design
from tensornet_attn.spec.expression import CallText, LegToken, UseText, each_of
from tensornet_attn.spec.names import identifier_problem
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.report import Reporter, meant, words
from tensornet_attn.spec.sizes import Leg, Sizes


@dataclass
class Scope:
    """The graph so far. `open` has the declared names without usable legs; follow-on errors about them are suppressed.

    `blind`: a whole section could not be read, so that an unknown name may be declared in it.
    `strange` has uses of undeclared names that resemble no declared name; each may mean a tensor that seems unused.
    """

    design: Design
    reporter: Reporter
    sizes: Sizes
    blind: bool = False
    tensors: dict[str, Tensor] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)  # steps that are defined below
    used: set[str] = field(default_factory=set)  # tensors and steps that are used or mentioned
    used_legs: set[str] = field(default_factory=set)
    strange: list[UseText] = field(default_factory=list)
    paths: dict[str, Path] = field(default_factory=dict)  # of each step, nested ones too
    merged: dict[str, str] = field(default_factory=dict)  # joined legs: `h d` as h_d

    def leg(self, token: LegToken) -> Leg:
        self.used_legs.add(token.name)
        leg = self.sizes.legs.get(token.name)
        if leg is None:
            hint = self.sizes.missing(token.name, settings=False)
            raise Refusal("unknown-leg", f"there is no leg '{token.name}'.", hint, token.span)
        return leg

    def joined(self, token: LegToken) -> Leg:
        """The leg of a joined token such as `(h d)`; created at its first use."""
        legs = [self.leg(leg_token) for leg_token in token.parts]
        twice = repeated(token.parts)
        if twice is not None:
            hint = "name each leg once."
            raise Refusal("leg-twice", f"leg '{twice.name}' occurs twice in '({token.text})'.", hint, twice.span)
        for leg_token, leg in zip(token.parts, legs, strict=True):
            if leg.size is None and leg.name not in self.sizes.broken:
                message = f"leg '{leg.name}' is sized at run time and cannot be joined."
                raise Refusal("run-time-leg", message, "move it out of the parentheses.", leg_token.span)
        if token.text not in self.merged:
            self.merged[token.text] = self._merged(token.name, legs)
        return self.sizes.legs[self.merged[token.text]]

    def split_again(self, name: str) -> str:
        """How a use writes a leg that several legs were made, `(h d)`; empty for any other."""
        return next((f"({joined_legs})" for joined_legs, merged in self.merged.items() if merged == name), "")

    def _merged(self, wish: str, legs: list[Leg]) -> str:
        taken = {*self.sizes.legs, *self.sizes.settings}
        name = wish
        while name in taken:
            name += "_"
        tree: Arith = Name(legs[0].name)
        for leg in legs[1:]:
            tree = Binary("*", tree, Name(leg.name))
        size = prod(leg.size or 1 for leg in legs)
        if {leg.name for leg in legs} & self.sizes.broken:
            self.sizes.broken.add(name)
        self.sizes.legs[name] = Leg(name, "size", size, text=tree)
        return name

    def legs_of(self, use: UseText) -> tuple[str, ...] | None:
        """The declared legs of a tensor or step. Returns None if it is broken."""
        name = use.name
        self.used.add(name)
        if name in self.open:
            return None
        if name in self.tensors or name in self.steps:
            return (self.tensors.get(name) or self.steps[name]).legs
        if name in self.later:
            span = (use.span[0], use.span[0] + len(name))
            hint = "move its definition above; a step uses only earlier steps, not itself."
            raise Refusal("used-before", f"'{name}' is used before it is defined.", hint, span)
        if self.blind:
            return None
        raise self._unknown(use)

    def _unknown(self, use: UseText) -> Refusal:
        """The error for an undeclared name. A name that resembles no declared name is reported once."""
        hint = self.reporter.nearest(use.name, () if self.reporter.tired else self._candidates(use))
        guess = meant(hint) or meant(self.reporter.nearest(use.name, self.later))
        self.used.add(guess or "")
        if guess is None:
            self.strange.append(use)
            self.open.add(use.name)
        span = (use.span[0], use.span[0] + len(use.name))
        return Refusal("unknown-name", f"there is no tensor or step '{use.name}'.", hint, span)

    def _candidates(self, use: UseText) -> list[str]:
        """The names to suggest: those whose legs fit or, if there are none, all."""
        strange = {unknown.name for unknown in self.strange}
        declared = [
            name
            for name in (*self.tensors, *self.steps, *self.open)
            if not identifier_problem(name) and name not in strange
        ]
        return [name for name in declared if self.could_be(use, name)] or declared

    def could_be(self, use: UseText, name: str) -> bool:
        """Whether the legs of a use fit a tensor or step, so that its name may be a misspelling."""
        declared = self.tensors.get(name) or self.steps.get(name)
        if declared is None or use.legs is None:
            return True
        legs = [self.sizes.legs.get(token.name) for token in use.legs]
        pairs = zip(declared.legs, legs, strict=False)
        return len(declared.legs) == len(legs) and all(b is None or self.fits(self.sizes.legs[a], b) for a, b in pairs)

    def use(self, written: UseText, prefix: str) -> Use | None:
        """A use, its legs checked against the declared legs. Returns None for a broken tensor without written legs.

        A joined leg adds a step, named after `prefix`, that splits it.
        """
        declared = self.legs_of(written)
        if written.legs is None:
            return None if declared is None else Use(written.name, declared)
        legs = [self.joined(token) if token.parts else self.leg(token) for token in written.legs]
        twice = repeated(each_of(written.legs))
        if twice is not None:
            hint = "use two different legs of equal size."
            raise Refusal("leg-twice", f"leg '{twice.name}' occurs twice on '{written.name}'.", hint, twice.span)
        if declared is not None:
            self._glue(written, legs, declared)
        use = Use(written.name, tuple(leg.name for leg in legs))
        for token, leg in zip(written.legs, legs, strict=True):
            if token.parts:
                use = self.apart(
                    use, leg.name, tuple(leg_token.name for leg_token in token.parts), f"{prefix}.{written.name}"
                )
        return use

    def apart(self, use: Use, leg: str, parts: tuple[str, ...], wish: str) -> Use:
        """Adds a step that splits a leg of a use; returns its result."""
        box = Box("split", leg, (("of", use),), parts=parts)
        return self.add(Step(self.fresh(wish), box, apart_of(use.legs, box)))

    def together(self, use: Use, leg: str, parts: tuple[str, ...], wish: str) -> Use:
        """Adds a step that joins legs, in the place of the first; returns its result."""
        first = next(axis for axis, use_leg in enumerate(use.legs) if use_leg in parts)
        legs = without((*use.legs[:first], leg, *use.legs[first:]), *parts)
        return self.add(Step(self.fresh(wish), Box("join", leg, (("of", use),), parts=parts), legs))

    def add(self, step: Step, path: Path | None = None) -> Use:
        """Adds a step; its location in the file is by default that of the whole step of the diagram."""
        self.steps[step.name] = step
        self.paths[step.name] = path or ("diagram", step.name.partition(".")[0])
        return step.use

    def fresh(self, wish: str) -> str:
        name, count = wish, 1
        while name in self.steps or name.rpartition(".")[2] in ("of", "by", "query", "key", "value", "rate", "sink"):
            count += 1
            name = f"{wish}{count}"
        return name

    def _glue(self, written: UseText, legs: list[Leg], declared: tuple[str, ...]) -> None:
        if len(legs) != len(declared):
            has = f"{len(declared)} leg{'s' * (len(declared) != 1)} ({' '.join(declared) or 'none'})"
            message = f"'{written.name}' has {has}, got {len(legs)}."
            example = " ".join(self.split_again(name) or name for name in declared)
            raise Refusal("leg-count", message, f"e.g. '{written.name}[{example}]'.", written.span)
        for token, leg, name in zip(written.legs or (), legs, declared, strict=True):
            declared_leg = self.sizes.legs[name]
            if not self.fits(declared_leg, leg):
                fit = f"leg '{name}' ({size_text(declared_leg)}) of '{written.name}'"
                message = f"leg '{leg.name}' ({size_text(leg)}) does not fit {fit}."
                raise Refusal("size", message, "use a leg of equal size.", token.span)

    @property
    def query(self) -> str | None:
        return next((leg.name for leg in self.sizes.legs.values() if leg.kind == "query"), None)

    def fits(self, declared: Leg, leg: Leg) -> bool:
        """Whether a leg may be used in place of another. Query and key fit each other, as in self-attention."""
        if declared.name == leg.name or {declared.name, leg.name} & self.sizes.broken:
            return True
        if declared.sequence or leg.sequence:
            return (declared.sequence and leg.sequence) or self.query is None  # reported for the output
        if "relative" in (declared.kind, leg.kind):
            return declared.kind == leg.kind and declared.reach == leg.reach
        return declared.size == leg.size

    def number(
        self, written: str | int | float | Arith, what: str, lengths: bool = False
    ) -> tuple[Arith, int | float | None]:
        """Arithmetic and its value, None if it depends on lengths at run time or on a broken size."""
        tree = parse(written) if isinstance(written, (str, int, float)) else written
        tree = with_constants(tree, {*self.sizes.legs, *self.sizes.settings})
        for name in names(tree):
            self.used_legs.add(name.name)
            leg = self.sizes.legs.get(name.name)
            if leg is None and name.name not in self.sizes.settings and not self.sizes.blind:
                message, hint = f"there is no leg or setting '{name.name}'.", self.sizes.missing(name.name)
                raise Refusal("unknown-leg", message, hint, name.span)
            unsized = leg is not None and leg.size is None and name.name not in self.sizes.broken
            if unsized and not (lengths and leg is not None and leg.sequence):
                message = f"leg '{name.name}' is sized at run time; {what} cannot depend on it."
                hint = "declare the number in 'settings' and use its name."
                raise Refusal("run-time-leg", message, hint, name.span)
        return tree, self.evaluated(tree)

    def function(self, call: CallText, what: str) -> Function:
        """A call with checked arguments."""
        arguments: list[Function | Arith] = []
        for argument in call.arguments:
            if isinstance(argument, CallText):
                arguments.append(self.function(argument, what))
            else:
                arguments.append(self.number(argument, what)[0])
        return Function(call.name, tuple(arguments))

    def evaluated(self, tree: Function | Arith) -> int | float | None:
        """The value of arithmetic, None if it is not known before run time."""
        if isinstance(tree, Function) or not all(name.name in self.sizes.values for name in names(tree)):
            return None
        return evaluate(tree, self.sizes.values)

    def mentions(self, broken: Any) -> None:
        """Marks all names in a broken part as used."""
        self.used |= words(broken)
        self.used_legs |= words(broken)


def repeated(tokens: Sequence[LegToken]) -> LegToken | None:
    """The first leg whose name occurs before."""
    return next((token for i, token in enumerate(tokens) if token.name in [t.name for t in tokens[:i]]), None)


def size_text(leg: Leg) -> str:
    """A leg's size in messages: `512`, or the kind of a leg that is sized at run time."""
    return str(leg.size) if leg.size is not None else leg.kind
