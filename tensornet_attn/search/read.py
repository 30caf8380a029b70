"""Reads and checks a space; all problems are reported at once, each with its location."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from tensornet_attn.errors import DesignError, Problem
from tensornet_attn.graph import examine
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.models.fit import inside, opened
from tensornet_attn.search.moves import MOVES
from tensornet_attn.search.space import COSTS, Alternative, Bounds, Space, Values, is_number, is_whole
from tensornet_attn.spec import Design
from tensornet_attn.spec.names import identifier_problem
from tensornet_attn.spec.places import Document, Path
from tensornet_attn.spec.read import merge, read_document
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.sources import Source, document_of

TOP = ("space", "name", "about", "base", "legs", "settings", "alternatives", "moves", "most", "bounds")
SECTIONS = ("legs", "settings", "inputs", "weights", "constants", "noise", "state", "losses")
LARGEST = 2**53  # whole numbers up to here are exact as decimals
KEYS = ("choices", "range", "log", "divisors")  # of values


def load(source: Source | Space) -> Space:
    """Reads a space from a path, YAML text or a dict. Raises DesignError with all problems.

    >>> load({"space": 1, "base": "mhsa", "legs": {"h": [4, 8]}}).legs["h"].items
    (4, 8)
    """
    if isinstance(source, Space):
        return source
    space, problems = _read(source)
    wrong = _errors(problems)
    if space is None or wrong:
        raise DesignError(wrong, "space")
    return space


def check(source: Source) -> list[Problem]:
    """All problems of a space; the list is empty if the space is valid."""
    return _read(source)[1]


def _read(source: Source) -> tuple[Space | None, list[Problem]]:
    document, reporter = document_of(source)
    space = _Reading(document, reporter).space() if document.data else None
    return None if reporter.failed else space, reporter.problems()


def _errors(problems: Iterable[Problem]) -> list[Problem]:
    """The problems without warnings."""
    return [problem for problem in problems if problem.severity == "error"]


class _Reading:
    def __init__(self, document: Document, reporter: Reporter):
        self.document, self.reporter, self.data = document, reporter, document.data
        self.bases: dict[str, Design] = {}

    def space(self) -> Space:
        self.top()
        self.read_bases()
        alternatives = self.alternatives()
        legs, settings = self.numbers("legs", alternatives), self.numbers("settings", alternatives)
        moves, bounds = self.moves(), self.bounds()
        most = self.whole(("most",), self.data.get("most", min(2, len(moves))), 0)
        bases = {name: design.as_dict() for name, design in self.bases.items()}
        name, about = self.data.get("name") or "space", self.data.get("about") or ""
        return Space(name, about, bases, legs, settings, alternatives, moves, min(most, len(moves)), bounds)

    def error(self, code: str, message: str, path: Path, hint: str, key: bool = False) -> None:
        self.reporter.error(code, message, path, hint=hint, key=key)

    def unknown(self, path: Path, what: str, names: Iterable[str]) -> None:
        """Reports the last name of a path as unknown: `no base has a leg 'q'.`"""
        name = str(path[-1])
        message = f"{what} '{printable(name)}'."
        self.error("unknown-name", message, path, self.reporter.nearest(name, names), key=True)

    def top(self) -> None:
        """Checks the version, the name, and unknown keys."""
        if self.data.get("space") != 1 or isinstance(self.data.get("space"), bool):
            message = "a space must begin with its version, 'space: 1'."
            self.error("version", message, ("space",), "write 'space: 1'.")
        for key in [key for key in self.data if key not in TOP]:
            self.reporter.unknown_key((key,), TOP)
        for key in ("name", "about"):
            if not isinstance(self.data.get(key, ""), str):
                self.error("wrong-type", "expected text.", (key,), f"e.g. '{key}: small'.")
        if isinstance(self.data.get("name"), str) and (problem := identifier_problem(self.data["name"])):
            self.error("name", problem[0], ("name",), problem[1])

    def section(self, path: Path) -> Mapping[str, Any]:
        """The mapping at a path; empty if there is none."""
        content = self.document.value(path)
        if content is not None and not isinstance(content, Mapping):
            self.error("wrong-type", f"'{path[-1]}' must be a mapping.", path, "compare with docs/space.md.")
        return content if isinstance(content, Mapping) else {}

    def read_bases(self) -> None:
        """Reads and checks the bases; an error in a base is reported at its place in this file."""
        bases = self.data.get("base")
        if not bases:
            message = "a space needs at least one base design."
            self.error("missing-key", message, ("base",), "e.g. 'base: mhsa'.")
            return
        several = isinstance(bases, (list, tuple))
        for index, base in enumerate(bases if several else [bases]):
            path: Path = ("base", index) if several else ("base",)
            if not base or not isinstance(base, (str, Mapping, Design)):
                hint = "give a shipped name, a path, or the design itself."
                self.error("wrong-type", "expected a design.", path, hint)
                continue
            reading = read_document(*opened(base, self.document, path))
            design, graph = reading.design, examine(reading) if reading.design is not None else None
            errors = _errors(reading.reporter.problems())
            if isinstance(base, Mapping):
                self.reporter.reported += errors
            elif errors:
                self.error(errors[0].code, f"this design is invalid: {errors[0].message}", path, errors[0].hint)
            if graph is None or design is None:
                continue
            if design.name in self.bases:
                message = f"two bases have the name '{design.name}'."
                self.error("name-taken", message, path, "rename one of them.")
            else:
                self.bases[design.name] = design

    def numbers(self, section: str, alternatives: dict[str, dict[str, Alternative]]) -> dict[str, Values]:
        """The values of the legs or settings that vary; each must be in a base, or in an alternative."""
        designs = self.bases.values()
        names = [name for design in designs for name in (design.settings if section == "settings" else _sized(design))]
        changes = [choice.change for choices in alternatives.values() for choice in choices.values()]
        names += [name for change in changes for name in change.get(section) or ()]
        varied = {}
        for name, description in self.section((section,)).items():
            path: Path = (section, name)
            if self.bases and name not in names:
                self.unknown(path, f"no base has a {section[:-1]}", names)
            elif (values := self.values(path, description)) is not None:
                varied[name] = values
                small = any(isinstance(end, float) or (isinstance(end, int) and end < 1) for end in _ends(values))
                if section == "legs" and small:
                    self.error("bad-size", "sizes of legs must be whole numbers from 1.", path, "e.g. [4, 8].")
        return varied

    def values(self, path: Path, description: Any) -> Values | None:
        try:
            return read_values(description)
        except Refusal as refusal:
            self.reporter.syntax(refusal, path)
            return None

    def alternatives(self) -> dict[str, dict[str, Alternative]]:
        """The alternatives of steps; each must be valid in at least one base."""
        alternatives: dict[str, dict[str, Alternative]] = {}
        for step, choices in self.section(("alternatives",)).items():
            owners = [base for base, design in self.bases.items() if step in design.diagram]
            if self.bases and not owners:
                names = [name for design in self.bases.values() for name in design.diagram]
                self.unknown(("alternatives", step), "no base has a step", names)
                continue
            for name in self.section(("alternatives", step)) if choices is not None else ():
                child = self.child(("alternatives", step, name), step)
                if child is not None:
                    alternatives.setdefault(step, {})[name] = Alternative(child.data, self.where_valid(child, owners))
        return alternatives

    def child(self, path: Path, step: str) -> Document | None:
        """An alternative as a child design, with `step` and `steps` moved into its diagram."""
        sections = self.section(path)
        for key in sections:
            if key not in (*SECTIONS, "step", "steps"):
                self.unknown((*path, key), "an alternative has no key", (*SECTIONS, "step", "steps"))
                return None
        if "step" not in sections:
            hint = "e.g. 'step: x[m f] Wk[f d] -> m d'."
            self.error("missing-key", "an alternative needs a 'step', the replacement.", path, hint)
            return None
        inner = inside(self.document, path)
        steps = {**(inner.data.pop("steps", None) or {}), step: inner.data.pop("step")}

        def moved(at: Path) -> Path:
            if at[:1] == ("step",):
                return ("diagram", step, *at[1:])
            return ("diagram", *at[1:]) if at[:1] == ("steps",) else at

        keys = {moved(at): location for at, location in inner.keys.items()}
        values = {moved(at): location for at, location in inner.values.items()}
        return Document({**inner.data, "diagram": steps}, self.document.name, keys, values, self.document.path)

    def where_valid(self, child: Document, owners: list[str]) -> tuple[str, ...]:
        """The bases in which an alternative is valid; if there is none, reports the problems in the first base."""
        refused: dict[str, list[Problem]] = {}
        for base in owners:
            design, reporter = self.bases[base], Reporter(child)
            merged = merge(design.document.copy(design.as_dict()), child.copy({**child.data, "name": base}), reporter)
            reading = read_document(merged, Reporter(merged))
            examine(reading)
            problems = _errors([*reporter.reported, *reading.reporter.problems()])
            if problems:
                refused[base] = problems
        if refused and len(refused) == len(owners):
            self.reporter.reported += refused[owners[0]]
        return tuple(base for base in owners if base not in refused)

    def moves(self) -> dict[str, dict[str, Values]]:
        """The moves and the values of their options; a list of names keeps the default values."""
        listed = self.data.get("moves") or {}
        if listed == "all":
            listed = dict.fromkeys(MOVES)
        if isinstance(listed, (list, tuple)):
            listed = dict.fromkeys(map(str, listed))
        if not isinstance(listed, Mapping):
            self.error(
                "wrong-type", "'moves' must be 'all', a list of moves, or a mapping.", ("moves",), "e.g. [share, core]."
            )
            return {}
        moves = {}
        for name, options in listed.items():
            if name not in MOVES:
                self.unknown(("moves", name), "there is no move", MOVES)
            elif options is None or isinstance(options, Mapping):
                moves[name] = self.options(name, options or {})
            else:
                hint = f"e.g. {{{next(iter(MOVES[name].options))}: [...]}}."
                self.error("wrong-type", "the options of a move must be a mapping.", ("moves", name), hint)
        return moves

    def options(self, name: str, chosen: Mapping[str, Any]) -> dict[str, Values]:
        move = MOVES[name]
        for option in chosen:
            if option not in move.options:
                self.unknown(("moves", name, option), f"the move '{name}' has no option", move.options)
        options = {option: Values(defaults) for option, defaults in move.options.items()}
        for option in [option for option in chosen if option in move.options]:
            path: Path = ("moves", name, option)
            values = self.values(path, chosen[option])
            wrong = [end for end in _ends(values) if not move.fits(option, end)] if values is not None else []
            if wrong:
                hint = f"e.g. {', '.join(map(str, move.options[option]))}."
                self.error("wrong-value", f"'{option}' of '{name}' cannot be {printable(str(wrong[0]))}.", path, hint)
            elif values is not None:
                options[option] = values
        return options

    def bounds(self) -> Bounds:
        """`{n: 64, batch: 1, macs: 1000000, parameters: {least: 1000, most: 50000}}`."""
        section, limits = self.section(("bounds",)), []
        n, batch = (
            self.whole(("bounds", name), section.get(name, default), 1) for name, default in (("n", 64), ("batch", 1))
        )
        for name in [name for name in section if name not in ("n", "batch")]:
            bound, path = section[name], ("bounds", name)
            ends = bound if isinstance(bound, Mapping) else {"most": bound}
            least, most = ends.get("least", 0), ends.get("most", inf)
            numbers = all((is_number(end) or end == inf) and end >= 0 for end in (least, most))
            if name not in COSTS:
                self.unknown(path, "there is no cost", (*COSTS, "n", "batch"))
            elif not set(ends) <= {"least", "most"} or not numbers or not least <= most:
                hint = "e.g. 1000000, or {least: 1000, most: 1000000}."
                self.error("number", "a bound must be a number, or a mapping with 'least' and 'most'.", path, hint)
            else:
                limits.append((name, least, most))
        return Bounds(n, batch, tuple(limits))

    def whole(self, path: Path, number: Any, least: int) -> int:
        if is_whole(number) and number >= least:
            return int(number)
        self.error(
            "number", f"'{path[-1]}' must be a whole number from {least}.", path, f"e.g. '{path[-1]}: {max(2, least)}'."
        )
        return least


def _ends(values: Values) -> tuple[Any, ...]:
    """The listed values, or the ends of a range."""
    return values.items or (values.low, values.high)


def _sized(design: Design) -> list[str]:
    """The legs of a design that have a size."""
    sequence_kinds = ("query", "key", "relative")
    return [
        name for name, declaration in design.declared_legs.items() if str(declaration).split()[0] not in sequence_kinds
    ]


def read_values(description: Any) -> Values:
    """The values of a leg, a setting or an option in a space file. Raises Refusal for invalid values.

    >>> tuple(read_values({"divisors": 12}))
    (1, 2, 3, 4, 6, 12)
    """
    if isinstance(description, Mapping):
        return _values_of(description)
    choices = tuple(description) if isinstance(description, (list, tuple)) else (description,)
    if not choices or not all(is_number(choice) or isinstance(choice, str) for choice in choices):
        raise Refusal("wrong-type", "expected a number, or a list of numbers or words.", "e.g. [2, 4, 8].")
    if len(set(choices)) < len(choices):
        raise Refusal("wrong-value", "a value is given twice.", "give each value once.")
    return Values(choices)


def _values_of(description: Mapping[str, Any]) -> Values:
    if len(description) != 1 or next(iter(description)) not in KEYS:
        keys = printable(", ".join(map(str, description)) or "nothing")
        message = f"expected one of {', '.join(KEYS)}, got {keys}."
        raise Refusal("wrong-value", message, "e.g. {choices: [2, 4, 8]} or {range: [1, 8]}.")
    ((key, argument),) = description.items()
    if key == "divisors":
        if not is_whole(argument) or not 1 <= argument <= 2**31:
            raise Refusal("wrong-value", "'divisors' needs a whole number from 1.", "e.g. {divisors: 64}.")
        small = [divisor for divisor in range(1, int(argument**0.5) + 1) if argument % divisor == 0]
        return Values(tuple(sorted({*small, *(argument // divisor for divisor in small)})))
    listed, example = isinstance(argument, (list, tuple)), f"e.g. {{{key}: [1, 8]}}."
    if key == "choices":
        if not listed:
            raise Refusal("wrong-type", "'choices' must be a list.", "e.g. {choices: [2, 4, 8]}.")
        return read_values(argument)
    if not listed or len(argument) != 2 or not all(map(is_number, argument)):
        raise Refusal("wrong-type", f"'{key}' needs two numbers, the smallest and the largest.", example)
    low, high = argument
    if not low < high or max(abs(low), abs(high)) > LARGEST or (key == "log" and low <= 0):
        least = "above 0, " if key == "log" else ""
        raise Refusal("wrong-value", f"'{key}' needs its smallest number {least}below its largest.", example)
    kind = int if is_whole(low) and is_whole(high) else float
    return Values(low=kind(low), high=kind(high), log=key == "log")
