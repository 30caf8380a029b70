"""Proposals, mutants and crossovers: pure functions of a space, paths, a seed and a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import log
from typing import Any, TypeVar

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.search.build import Proposal, Refused, Walk, built, start, walked
from tensornet_attn.search.roles import maps
from tensornet_attn.search.space import SECTIONS, Choice, Path, Space, Value, Values, base_of, fitting, missing, of_kind
from tensornet_attn.tasks.chance import RandomStream

ATTEMPTS = 160  # drafts of one proposal before the space counts as empty
SEED_DRAFTS = 64  # drafts with a base that violates a bound
SEED_STARTS = 4  # the most expensive of these drafts, whose sizes are increased up to the bound
_SEEDS: dict[str, tuple[Proposal, ...]] = {}  # the seeds of the last space, by its hash


def propose(space: Space, seed: int, number: int) -> Proposal:
    """Proposal `number` of a random search. Raises InputError if none of many drafts is valid and within bounds."""
    return _first(space, "random", seed, number, lambda luck: draft(space, luck))


def seeds(space: Space) -> list[Proposal]:
    """The bases as proposals, as far as the bounds allow.

    A size or setting that varies keeps the base's value if the space has it, and takes the middle value otherwise. If a
    base then violates a bound, the most expensive of several random drafts within bounds, by multiply-adds, replaces
    it; its sizes are increased up to the bounds, because good designs lie at their bounds.
    """
    if space.hash not in _SEEDS:
        candidates = (_seed(space, index, Choice("base", base)) for index, base in enumerate(space.bases))
        _SEEDS.clear()
        _SEEDS[space.hash] = tuple(proposal for proposal in candidates if proposal is not None)
    return list(_SEEDS[space.hash])


def _seed(space: Space, index: int, base: Choice) -> Proposal | None:
    content, path = space.bases[base.name], [base]
    for kind, name in missing(space, (base,)):
        values, base_value = (
            space.numbers(kind)[name],
            str(content[SECTIONS[kind]][name]).removeprefix("head ").removeprefix("shared "),
        )
        matching = [value for value in values if str(value) == base_value]
        path.append(Choice(kind, name, matching[0] if matching else values.at(0.5)))
    first = built(space, tuple(path))
    if isinstance(first, Proposal) or not first.bound:
        return first if isinstance(first, Proposal) else None
    drawn = (built(space, completed(space, (base,), Luck("seeds", 0, index, count))) for count in range(SEED_DRAFTS))
    unique = {proposal.essence: proposal for proposal in drawn if isinstance(proposal, Proposal)}
    starts = sorted(unique.values(), key=_size, reverse=True)[:SEED_STARTS]
    return max((_raised(space, proposal) for proposal in starts), key=_size, default=None)


def _size(proposal: Proposal) -> tuple[int, str]:
    return proposal.price.macs, proposal.hash


def _raised(space: Space, proposal: Proposal) -> Proposal:
    """A proposal with its numbers increased, alone or in exchange for a decrease of another, while within bounds."""
    while True:
        largest = max(_larger(space, proposal.path), key=_size, default=proposal)
        if largest.price.macs <= proposal.price.macs:
            return proposal
        proposal = largest


def _larger(space: Space, path: Path) -> Iterator[Proposal]:
    """Proposals with one number increased; if that violates a bound, another is decreased as little as needed."""
    choices = _varied(space, path)
    for choice in choices:
        for value in _nearest_first(space, choice, (1,)):
            raised = _with(path, choice, value=value)
            outcome = built(space, raised)
            if isinstance(outcome, Proposal):
                yield outcome
            elif outcome.bound:
                trades = (
                    _traded(space, raised, other_choice, (-1,)) for other_choice in choices if other_choice != choice
                )
                yield from (trade for trade in trades if trade is not None)
                break


def mutate(space: Space, path: Path, seed: int, number: int = 0) -> Proposal:
    """A proposal with one change of a path: another base, alternative or number, or a move added, dropped or changed.

    If the change violates a bound, one number changes as little as needed. Raises InputError like `propose`, and if the
    base of the path is not in the space.
    """

    def change(luck: Luck) -> Proposal | Refused:
        outcome = _eased(space, completed(space, mutant(space, path, luck), luck), luck)
        same = isinstance(outcome, Proposal) and outcome.path == path
        return Refused("no change") if same else outcome

    return _first(space, "mutate", seed, number, change, (path,))


def cross(space: Space, first: Path, second: Path, seed: int, number: int = 0) -> Proposal:
    """A crossover of two paths: each number from one of them, then moves of the first and of the second.

    Raises InputError like `mutate`.
    """

    def attempt(luck: Luck) -> Proposal | Refused:
        return _eased(space, completed(space, child(space, first, second, luck), luck), luck)

    return _first(space, "cross", seed, number, attempt, (first, second))


def _eased(space: Space, path: Path, luck: Luck) -> Proposal | Refused:
    """The proposal of a path; if it violates a bound, one number takes the nearest value within all bounds.

    Good designs lie at their bounds, where one number grows at the cost of another: two heads of 32, or four of 16.
    """
    outcome = built(space, path)
    if isinstance(outcome, Proposal) or not outcome.bound:
        return outcome
    choices = _varied(space, path)
    return (_traded(space, path, luck.pick(choices)) if choices else None) or outcome


def _varied(space: Space, path: Path) -> list[Choice]:
    """The sizes and settings of a path that have other values in the space."""
    return [c for kind in SECTIONS for c in of_kind(path, kind) if len(space.numbers(kind)[c.name]) > 1]


def _with(path: Path, changed: Choice, **fields: Any) -> Path:
    """A path with other fields in one choice."""
    return tuple(replace(choice, **fields) if choice == changed else choice for choice in path)


def _without(path: Path, kind: str, name: str | None = None) -> Path:
    """A path without the choices of a kind, or without one of them."""
    return tuple(choice for choice in path if choice.kind != kind or name not in (None, choice.name))


def _traded(space: Space, path: Path, choice: Choice, directions: Sequence[int] = (-1, 1)) -> Proposal | None:
    """The proposal of a path with the nearest value of one number within all bounds; None if there is none."""
    for value in _nearest_first(space, choice, directions):
        outcome = built(space, _with(path, choice, value=value))
        if isinstance(outcome, Proposal):
            return outcome
    return None


def _nearest_first(space: Space, choice: Choice, directions: Sequence[int]) -> Iterator[Value]:
    """Other values, 1, 2, 3, 5, 8, 11, ... positions below (-1) and above (1) the value of a choice."""
    values = space.numbers(choice.kind)[choice.name]
    start = values.place(choice.value)
    if start is None:
        return
    steps = sorted({round(1.5**power) for power in range(1 + int(log(len(values), 1.5)))})
    for step in steps:
        indices = (start + direction * step for direction in directions)
        yield from (values[index] for index in indices if 0 <= index < len(values))


def _first(
    space: Space, purpose: str, seed: int, number: int, attempt: Attempt, parents: Sequence[Path] = ()
) -> Proposal:
    """The first attempt that results in a proposal. Raises InputError if all fail, or for an unknown base."""
    for base in map(base_of, parents):
        if base not in space.bases:
            raise InputError(f"the space '{space.name}' has no base '{base}'; {nearest(base, space.bases)}")
    refused: list[Refused] = []
    for count in range(ATTEMPTS):
        outcome = attempt(Luck(purpose, seed, number, count))
        if isinstance(outcome, Proposal):
            return outcome
        refused.append(outcome)
    raise InputError(why(space, refused))


def why(space: Space, refused: list[Refused]) -> str:
    """A sentence with the most frequent reasons why drafts were refused, and a hint."""
    counts = Counter(refusal.reason for refusal in refused)
    reason, _ = counts.most_common(1)[0]
    reasons = "; ".join(f"{count} by '{explanation.rstrip('.')}'" for explanation, count in counts.most_common(3))
    rest = "" if len(counts) <= 3 else "; others for other reasons"
    worst = next(refusal for refusal in refused if refusal.reason == reason)
    hint = "change the legs, settings or alternatives of the space"
    if worst.bound:
        values = [refusal.value for refusal in refused if refusal.reason == reason]
        near, change = (min(values), "smaller") if "at most" in reason else (max(values), "larger")
        hint = f"the nearest had {worst.cost} {near:,.0f}: widen the bound, or allow {change} legs"
    return f"all {len(refused)} drafts of the space '{space.name}' were refused: {reasons}{rest}; {hint}."


def draft(space: Space, luck: Luck) -> Proposal | Refused:
    """The proposal of a random path; moves that do not apply are replaced by others."""
    opening = [Choice("base", luck.pick(tuple(space.bases)))]
    for step, names in fitting(space, opening[0].name).items():
        name = luck.pick((None, *names))
        opening += [] if name is None else [Choice("alternative", step, name)]
    for kind in SECTIONS:
        opening += [Choice(kind, name, luck.value(values)) for name, values in space.numbers(kind).items()]
    walk = start(space, tuple(opening))
    if isinstance(walk, Refused):
        return walk
    count = int(luck.unit() * (space.most + 1))
    for name in luck.shuffled(tuple(space.moves)):
        if len(of_kind(walk.path, "move")) >= count:
            break
        choice = random_move(walk, name, luck)
        walk = (walk.after(choice) if choice is not None else None) or walk
    return walk.end()


def random_move(walk: Walk, name: str, luck: Luck) -> Choice | None:
    """A move at a random map with random options; None if there is no map."""
    places = maps(walk.sketch)
    if not places:
        return None
    options = tuple((option, luck.value(values)) for option, values in walk.space.moves[name].items())
    return Choice("move", name, at=luck.pick(places).box, options=options)


def mutant(space: Space, path: Path, luck: Luck) -> Path:
    """A path with one random change, which may be invalid."""
    moves = of_kind(path, "move")
    unused = [name for name in space.moves if name not in {choice.name for choice in moves}]
    changes = ["base"] * (len(space.bases) > 1) + ["alternative"] * bool(space.alternatives)
    changes += [kind for kind in SECTIONS if space.numbers(kind)]
    changes += ["add", "add"] * bool(unused and len(moves) < space.most) + ["drop", "options"] * bool(moves)
    move = luck.pick(moves) if moves else None
    change = luck.pick(changes) if changes else ""
    if change == "base":
        other_bases = [name for name in space.bases if name != base_of(path)]
        return (Choice("base", luck.pick(other_bases)), *_without(path, "base"))
    if change == "alternative":
        step = luck.pick(tuple(space.alternatives))
        name = luck.pick((None, *space.alternatives[step]))
        rest = _without(path, "alternative", step)
        return rest if name is None else (*rest, Choice("alternative", step, name))
    if change in SECTIONS:
        number = luck.pick(tuple(space.numbers(change)))
        return (*_without(path, change, number), Choice(change, number, luck.value(space.numbers(change)[number])))
    if change == "add":  # at a random position among the moves, at a map that exists there
        new, position = luck.pick(unused), int(luck.unit() * (len(moves) + 1))
        head = (*_without(path, "move"), *moves[:position])
        walk = walked(space, head)
        choice = random_move(walk, new, luck) if isinstance(walk, Walk) else None
        return path if choice is None else (*head, choice, *moves[position:])
    if change == "options" and move is not None:
        option = luck.pick([option for option, _ in move.options])
        drawn = luck.value(space.moves[move.name][option])
        return _with(path, move, options=tuple((key, drawn if key == option else old) for key, old in move.options))
    return tuple(choice for choice in path if choice != move)  # "drop"


def child(space: Space, first: Path, second: Path, luck: Luck) -> Path:
    """A path with the base of the first, numbers and alternatives of either, moves of the first, then the second."""
    path: list[Choice] = [choice for choice in first if choice.kind == "base"]
    for kind in ("alternative", "leg", "setting"):
        mine, theirs = ({choice.name: choice for choice in of_kind(parent, kind)} for parent in (first, second))
        for name in dict.fromkeys((*mine, *theirs)):
            parents = [choices for choices in (mine, theirs) if name in choices or kind == "alternative"]
            choice = luck.pick(parents).get(name)
            path += [choice] if choice is not None else []
    first_moves, second_moves = of_kind(first, "move"), of_kind(second, "move")
    head = first_moves[: int(luck.unit() * (len(first_moves) + 1))]
    names = {choice.name for choice in head}
    tail = [choice for choice in second_moves[int(luck.unit() * (len(second_moves) + 1)) :] if choice.name not in names]
    return (*path, *head, *tail)[: len(path) + space.most]


def completed(space: Space, path: Path, luck: Luck) -> Path:
    """A path with random values for the numbers that it lacks, e.g. after a change of base."""
    drawn = (Choice(kind, name, luck.value(space.numbers(kind)[name])) for kind, name in missing(space, path))
    return (*path, *drawn)


T = TypeVar("T")
_VERSION = 1  # changes whenever the choices of a seed change


class Luck:
    """A sequence of random choices for one attempt at one proposal."""

    def __init__(self, purpose: str, seed: int, number: int, attempt: int):
        self._draws = RandomStream(f"space/{purpose}", _VERSION, "proposals", seed).at([number], [attempt])
        self._place = 0

    def unit(self) -> float:
        """A number strictly between 0 and 1."""
        self._place += 1
        return float(self._draws.uniform(self._place, 1)[0, 0])

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.unit() * len(items))]

    def value(self, values: Values) -> Value:
        return values.at(self.unit())

    def shuffled(self, items: Sequence[T]) -> list[T]:
        order = sorted((self.unit(), index) for index in range(len(items)))
        return [items[index] for _, index in order]


Attempt = Callable[[Luck], Proposal | Refused]
