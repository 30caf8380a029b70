"""Names in emitted code: those of the diagram, and helper names that do not clash with them."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Graph

BUILTINS = frozenset("bool dict len max min round super tuple".split())  # builtins that the emitted class uses
_TAKEN = (
    frozenset("self torch F nn Tensor math noise mask key_mask losses".split()) | BUILTINS | frozenset(keyword.kwlist)
)


@dataclass
class Names:
    """Assigns each local name once, avoiding the names of Python and of functions in the file."""

    functions: frozenset[str] = frozenset()  # functions that emitted code may call
    taken: set[str] = field(default_factory=set)

    def diagram_name(self, name: str) -> str:
        """A name of the diagram, with an underscore appended if it clashes."""
        while self._clashes(name):
            name += "_"
        self.taken.add(name)
        return name

    def fresh(self, wish: str) -> str:
        """A helper name, numbered from 2 if it is taken."""
        name, number = wish, 1
        while self._clashes(name):
            number += 1
            name = f"{wish}_{number}"
        self.taken.add(name)
        return name

    def _clashes(self, name: str) -> bool:
        return name in self.taken or name in _TAKEN or name in self.functions


def locals_of(graph: Graph, names: Names) -> dict[str, str]:
    """The local name of every tensor and step; names of the diagram have priority."""
    tensors, steps = [tensor.name for tensor in graph.tensors], [step.name for step in graph.steps if not step.nested]
    local = {name: names.diagram_name(name) for name in (*tensors, *steps) if "." not in name}
    local |= {name: names.fresh(name.replace(".", "_")) for name in tensors if "." in name}
    return local | {step.name: names.fresh(_nested(graph, step.name)) for step in graph.steps if step.nested}


def _nested(graph: Graph, name: str) -> str:
    """`A.of` becomes A_scores if A is a softmax, `A.of.p1` becomes A_scores_1, `A.o` becomes o."""
    parent, _, component = name.rpartition(".")
    if component == "o":
        return "o"
    if not parent:
        return name
    outer = graph.step.get(parent)
    if component == "of" and outer is not None and operation_of(outer).zero_where_hidden:
        component = "scores"
    return f"{_nested(graph, parent)}_{re.sub(r'^p(?=[0-9])', '', component)}"


def class_name(design: str, texts: Iterable[str], taken: frozenset[str]) -> str:
    """`hard_fish` becomes HardFish, `mhsa` MHSA: acronyms in the texts of the design are capitalised."""
    words = [word for text in texts for word in re.findall(r"[A-Za-z0-9]+", text)]
    name = "".join(word.upper() if _acronym(word, words) else word.capitalize() for word in design.split("_"))
    return f"{name}_" if name in _TAKEN | taken else name


def _acronym(word: str, words: list[str]) -> bool:
    """Whether a text has the word in capitals, or words whose initials spell it in order."""
    if len(word) > 1 and word.upper() in words:
        return True
    initials = iter("".join(known_word[0].lower() for known_word in words))
    return len(word) > 2 and all(letter in initials for letter in word)


def docstring_text(text: str) -> str:
    """A text of the user on one line, safe inside a docstring."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return harmless(line)[:400]


def harmless(line: str) -> str:
    """The line without characters that end a docstring or start an escape."""
    return line.replace("\\", "/").replace('"', "'")
