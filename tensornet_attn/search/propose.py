"""Proposals: pure functions of a space, a seed and a number; mutants and children of paths likewise."""

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
from tensornet_attn.tasks.chance import Stream

ATTEMPTS = 160  # drafts of one proposal, before the space is said to be empty
SEED_DRAFTS = 64  # of a base that breaks a bound
SEED_STARTS = 4  # the most expensive of them, which are raised to the bound
_SEEDS: dict[str, tuple[Proposal, ...]] = {}  # of the space that was asked for last, by its hash


def propose(space: Space, seed: int, number: int) -> Proposal:
    """Proposal `number` of a random search. Raises InputError where none of many drafts is valid and within bounds."""
    return _first(space, "random", seed, number, lambda luck: draft(space, luck))


def seeds(space: Space) -> list[Proposal]:
    """The bases as proposals, as far as the bounds allow.

    What varies has the base's own value where that is one of its values, and the middle one else. A base that breaks
    a bound with these has other numbers: of some that are drawn and within bounds the most expensive, in multiply-adds,
    and then larger ones as far as the bounds allow, for good designs lie at their bounds.
    """
    if space.hash not in _SEEDS:
        found = (_seed(space, place, Choice("base", base)) for place, base in enumerate(space.bases))
        _SEEDS.clear()
        _SEEDS[space.hash] = tuple(proposal for proposal in found if proposal is not None)
    return list(_SEEDS[space.hash])


def _seed(space: Space, place: int, base: Choice) -> Proposal | None:
    data, path = space.bases[base.name], [base]
    for kind, name in missing(space, (base,)):
        values, text = (
            space.numbers(kind)[name],
            str(data[SECTIONS[kind]][name]).removeprefix("head ").removeprefix("shared "),
        )
        own = [value for value in values if str(value) == text]
        path.append(Choice(kind, name, own[0] if own else values.at(0.5)))
    first = built(space, tuple(path))
    if isinstance(first, Proposal) or not first.bound:
        return first if isinstance(first, Proposal) else None
    drawn = (built(space, completed(space, (base,), Luck("seeds", 0, place, count))) for count in range(SEED_DRAFTS))
    unique = {found.essence: found for found in drawn if isinstance(found, Proposal)}
    starts = sorted(unique.values(), key=_size, reverse=True)[:SEED_STARTS]
    return max((_raised(space, found) for found in starts), key=_size, default=None)


def _size(found: Proposal) -> tuple[int, str]:
    return found.price.macs, found.hash


def _raised(space: Space, found: Proposal) -> Proposal:
    """A proposal with its numbers raised, one at a time or in trade for another, while it stays within bounds."""
    while True:
        largest = max(_larger(space, found.path), key=_size, default=found)
        if largest.price.macs <= found.price.macs:
            return found
        found = largest


def _larger(space: Space, path: Path) -> Iterator[Proposal]:
    """Proposals with one number raised; where that breaks a bound, another is lowered, as little as will do."""
    many = _varied(space, path)
    for one in many:
        for value in _nearest_first(space, one, (1,)):
            raised = _with(path, one, value=value)
            found = built(space, raised)
            if isinstance(found, Proposal):
                yield found
            elif found.bound:
                trades = (_traded(space, raised, other, (-1,)) for other in many if other != one)
                yield from (trade for trade in trades if trade is not None)
                break


def mutate(space: Space, path: Path, seed: int, number: int = 0) -> Proposal:
    """A proposal one change away from a path: a base, alternative or number, or a move added, dropped or changed.

    Where the change alone breaks a bound, one number changes with it, as little as will do.
    Raises InputError as `propose` does, and where the path starts from no base of the space.
    """

    def change(luck: Luck) -> Proposal | Refused:
        found = _eased(space, completed(space, mutant(space, path, luck), luck), luck)
        same = isinstance(found, Proposal) and found.path == path
        return Refused("no change") if same else found

    return _first(space, "mutate", seed, number, change, (path,))


def cross(space: Space, first: Path, second: Path, seed: int, number: int = 0) -> Proposal:
    """A proposal with choices of two paths: each number of one of them, moves of the first and then of the second.

    Raises InputError as `mutate` does.
    """

    def attempt(luck: Luck) -> Proposal | Refused:
        return _eased(space, completed(space, child(space, first, second, luck), luck), luck)

    return _first(space, "cross", seed, number, attempt, (first, second))


def _eased(space: Space, path: Path, luck: Luck) -> Proposal | Refused:
    """What a path leads to; where it breaks a bound, one number of it takes the nearest value that keeps all bounds.

    Good designs lie at their bounds, where more of one thing is less of another: two heads of 32 or four of 16.
    """
    found = built(space, path)
    if isinstance(found, Proposal) or not found.bound:
        return found
    many = _varied(space, path)
    return (_traded(space, path, luck.pick(many)) if many else None) or found


def _varied(space: Space, path: Path) -> list[Choice]:
    """The numbers of a path that might be others."""
    return [c for kind in SECTIONS for c in of_kind(path, kind) if len(space.numbers(kind)[c.name]) > 1]


def _with(path: Path, one: Choice, **fields: Any) -> Path:
    """A path with other fields of one of its choices."""
    return tuple(replace(choice, **fields) if choice == one else choice for choice in path)


def _without(path: Path, kind: str, name: str | None = None) -> Path:
    """A path without its choices of a kind, or without one of them."""
    return tuple(choice for choice in path if choice.kind != kind or name not in (None, choice.name))


def _traded(space: Space, path: Path, one: Choice, ways: Sequence[int] = (-1, 1)) -> Proposal | None:
    """What a path leads to with the nearest value of one of its numbers that keeps all bounds."""
    for value in _nearest_first(space, one, ways):
        found = built(space, _with(path, one, value=value))
        if isinstance(found, Proposal):
            return found
    return None


def _nearest_first(space: Space, one: Choice, ways: Sequence[int]) -> Iterator[Value]:
    """Other values, 1, 2, 3, 5, 8, 11, ... places below (-1) and above (1) that of a path; none where it is none."""
    values = space.numbers(one.kind)[one.name]
    place = values.place(one.value)
    if place is None:
        return
    steps = sorted({round(1.5**power) for power in range(1 + int(log(len(values), 1.5)))})
    for step in steps:
        others = (place + way * step for way in ways)
        yield from (values[other] for other in others if 0 <= other < len(values))


def _first(
    space: Space,
    purpose: str,
    seed: int,
    number: int,
    attempt: Callable[[Luck], Proposal | Refused],
    parents: Sequence[Path] = (),
) -> Proposal:
    """The first of the attempts that gives a proposal."""
    for base in map(base_of, parents):
        if base not in space.bases:
            raise InputError(f"the space '{space.name}' has no base '{base}'; {nearest(base, space.bases)}")
    refused: list[Refused] = []
    for count in range(ATTEMPTS):
        found = attempt(Luck(purpose, seed, number, count))
        if isinstance(found, Proposal):
            return found
        refused.append(found)
    raise InputError(why(space, refused))


def why(space: Space, refused: list[Refused]) -> str:
    """One sentence: what refused how many drafts, and what to change."""
    counts = Counter(one.reason for one in refused)
    reason, _ = counts.most_common(1)[0]
    told = "; ".join(f"{count} by '{text.rstrip('.')}'" for text, count in counts.most_common(3))
    more = "" if len(counts) <= 3 else "; others for other reasons"
    worst = next(one for one in refused if one.reason == reason)
    hint = "change the legs, settings or alternatives that vary"
    if worst.bound:
        values = [one.value for one in refused if one.reason == reason]
        near, other = (min(values), "smaller") if "at most" in reason else (max(values), "larger")
        hint = f"the nearest had {worst.cost} {near:,.0f}: widen that bound, or let {other} legs vary"
    return f"none of {len(refused)} drafts of the space '{space.name}' is left: {told}{more}; {hint}."


def draft(space: Space, luck: Luck) -> Proposal | Refused:
    """A random path, and what it leads to. Moves without a place are passed over for others."""
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
    """A move at one of the maps, with options; None where there is no map."""
    places = maps(walk.sketch)
    if not places:
        return None
    options = tuple((option, luck.value(values)) for option, values in walk.space.moves[name].items())
    return Choice("move", name, at=luck.pick(places).box, options=options)


def mutant(space: Space, path: Path, luck: Luck) -> Path:
    """A path with one thing changed; nothing says that it leads anywhere."""
    moves = of_kind(path, "move")
    unused = [name for name in space.moves if name not in {choice.name for choice in moves}]
    ways = ["base"] * (len(space.bases) > 1) + ["alternative"] * bool(space.alternatives)
    ways += [kind for kind in SECTIONS if space.numbers(kind)]
    ways += ["add", "add"] * bool(unused and len(moves) < space.most) + ["drop", "options"] * bool(moves)
    one = luck.pick(moves) if moves else None
    way = luck.pick(ways) if ways else ""
    if way == "base":
        others = [name for name in space.bases if name != base_of(path)]
        return (Choice("base", luck.pick(others)), *_without(path, "base"))
    if way == "alternative":
        step = luck.pick(tuple(space.alternatives))
        name = luck.pick((None, *space.alternatives[step]))
        rest = _without(path, "alternative", step)
        return rest if name is None else (*rest, Choice("alternative", step, name))
    if way in SECTIONS:
        number = luck.pick(tuple(space.numbers(way)))
        return (*_without(path, way, number), Choice(way, number, luck.value(space.numbers(way)[number])))
    if way == "add":  # at a random place among the moves, and at a map that is there then
        new, place = luck.pick(unused), int(luck.unit() * (len(moves) + 1))
        head = (*_without(path, "move"), *moves[:place])
        walk = walked(space, head)
        choice = random_move(walk, new, luck) if isinstance(walk, Walk) else None
        return path if choice is None else (*head, choice, *moves[place:])
    if way == "options" and one is not None:
        option = luck.pick([option for option, _ in one.options])
        drawn = luck.value(space.moves[one.name][option])
        return _with(path, one, options=tuple((key, drawn if key == option else old) for key, old in one.options))
    return tuple(choice for choice in path if choice != one)  # "drop"


def child(space: Space, first: Path, second: Path, luck: Luck) -> Path:
    """A path with the base of the first, numbers and alternatives of either, moves of the first and then the second."""
    path: list[Choice] = [choice for choice in first if choice.kind == "base"]
    for kind in ("alternative", "leg", "setting"):
        mine, theirs = ({c.name: c for c in of_kind(parent, kind)} for parent in (first, second))
        for name in dict.fromkeys((*mine, *theirs)):
            parents = [of for of in (mine, theirs) if name in of or kind == "alternative"]
            choice = luck.pick(parents).get(name)
            path += [choice] if choice is not None else []
    one, two = of_kind(first, "move"), of_kind(second, "move")
    head = one[: int(luck.unit() * (len(one) + 1))]
    names = {choice.name for choice in head}
    tail = [choice for choice in two[int(luck.unit() * (len(two) + 1)) :] if choice.name not in names]
    return (*path, *head, *tail)[: len(path) + space.most]


def completed(space: Space, path: Path, luck: Luck) -> Path:
    """The path with values for what varies in its base and it does not choose: a change of base brings other legs."""
    drawn = (Choice(kind, name, luck.value(space.numbers(kind)[name])) for kind, name in missing(space, path))
    return (*path, *drawn)


T = TypeVar("T")
_VERSION = 1  # changes whenever a seed comes to mean other choices


class Luck:
    """The choices of one attempt at one proposal, in the order in which they are asked for."""

    def __init__(self, purpose: str, seed: int, number: int, attempt: int):
        self._draws = Stream(f"space/{purpose}", _VERSION, "proposals", seed).at([number], [attempt])
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
        order = sorted((self.unit(), place) for place in range(len(items)))
        return [items[place] for _, place in order]
