"""The table of moves on diagrams, with names, descriptions and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tensornet_attn import compiler
from tensornet_attn.errors import DesignError, InputError, nearest
from tensornet_attn.search.moves.keys import FEATURES, KEYS, SIDES, WAYS, delta, kernel, mixture, split
from tensornet_attn.search.moves.projections import PROJECTIONS, experts, gate, latent
from tensornet_attn.search.moves.scores import FORMS, core, group, mix, share
from tensornet_attn.search.roles import maps
from tensornet_attn.search.sketch import Sketch, data_of, on_a_copy, sketch_of
from tensornet_attn.spec import Design

__all__ = ["MOVES", "Move", "apply"]


@dataclass(frozen=True)
class Move:
    """A move. `change` maps a sketch, one of its maps and options to a sketch, or to None if the move does not apply.

    `options`: the default values of each option; a number may be any whole number from 1.
    """

    name: str
    about: str
    change: Callable[..., Sketch | None]
    options: Mapping[str, tuple[Any, ...]]

    def __call__(self, sketch: Sketch, box: str, options: Mapping[str, Any]) -> Sketch | None:
        """The sketch after the move at the map of a box; None if there is no such map or the move does not apply."""
        at = next((attention_map for attention_map in maps(sketch) if attention_map.box == box), None)
        return None if at is None else self.change(sketch, at, **options)

    def fits(self, option: str, value: Any) -> bool:
        """Whether a value is valid for an option."""
        if isinstance(self.options[option][0], int):
            return isinstance(value, int) and value >= 1
        return isinstance(value, str) and _WORDS[option](value)


_WORDS: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {
        "form": lambda word: word in FORMS,
        "way": lambda word: word in WAYS,
        "keys": lambda word: word in KEYS,
        "side": lambda word: word in SIDES,
        "map": lambda word: word in FEATURES,
        "maps": lambda word: set(word.split("+")) <= set(FEATURES),
        "of": lambda word: 0 < len(set(word)) == len(word) and set(word) <= set(PROJECTIONS),
    }
)
_EXPERTS = ("v", "o", "vo", "vk", "vko", "q", "k", "qo", "ko")
_TABLE: tuple[tuple[str, str, Callable[..., None], Mapping[str, tuple[Any, ...]]], ...] = (
    ("share", "score heads are mixtures of g global ones", share, {"g": (1, 2, 4, 8)}),
    ("group", "g groups of heads share keys and values", group, {"g": (1, 2, 4)}),
    ("core", "a core matrix mixes the scores", core, {"form": FORMS, "c": (1, 4, 8)}),
    ("mixture", "each key is a mixture of r", mixture, {"r": (2, 3), "way": WAYS, "keys": KEYS}),
    ("experts", "projections select k of e experts", experts, {"of": _EXPERTS, "e": (4, 5, 8), "k": (1, 2)}),
    ("gate", "each query selects k heads", gate, {"k": (1, 2, 4)}),
    ("mix", "value heads read mixtures of the maps", mix, {"e": (2, 4, 8)}),
    ("kernel", "a kernel replaces the softmax", kernel, {"map": FEATURES[:2]}),
    (
        "split",
        "a band of softmax and kernels over all keys",
        split,
        {"band": (5, 20), "maps": ("elu1", "elu1+elu1_neg", "elu1+elu1_neg+tanh"), "side": SIDES},
    ),
    ("latent", "keys and values come from a latent of c", latent, {"c": (16, 32, 64, 128)}),
    ("delta", "fast weights are blended with the map", delta, {"map": FEATURES[:1]}),
)
MOVES: Mapping[str, Move] = MappingProxyType(
    {name: Move(name, about, on_a_copy(change), options) for name, about, change, options in _TABLE}
)


def apply(design: Design, name: str, box: str | None = None, **options: Any) -> Design | None:
    """The design after one move at the map of `box` (default: the first map); None if the move does not apply.

    Raises InputError for an unknown move or option.

    >>> apply(compiler.load("mhsa"), "group", g=2).hash == compiler.load("gqa").hash
    True
    """
    if name not in MOVES:
        raise InputError(f"there is no move '{name}'; {nearest(name, MOVES)}")
    move = MOVES[name]
    wrong = next((option for option in options if option not in move.options), None)
    if wrong is not None:
        raise InputError(f"the move '{name}' has no option '{wrong}'; {nearest(wrong, move.options)}")
    sketch = sketch_of(design)
    box_name = box or next((attention_map.box for attention_map in maps(sketch)), "")
    changed = move(sketch, box_name, {key: values[0] for key, values in move.options.items()} | options)
    try:
        return None if changed is None else compiler.load(data_of(changed))
    except DesignError:  # the result of the move is invalid
        return None
