"""Rules as text that runs: `before -> after` over sums of products and boxes, read once, matched at a step, and built.

    S = .. + c * X[keys].. ..; A = softmax(S)   ->   S = .. + c * {X..} ..; A = softmax(S)

Steps are separated by `;`. The last one of `before` stands at the place of the rule, or the first if the rule says so;
all but the last are read by the next alone. In a product `X` is a factor, `X..` those that are left, `..` the others,
and `c *` binds the coefficient, which is 1 otherwise; in a sum `..` are the other terms. Words in brackets must hold of
a factor: `n` (on the query leg), `m` (on the key leg), `keys` (on any leg of the softmax), `held` (made of weights
alone), `map` (attention), `no m`; `chosen` and `terms` are what a function of the rule chooses.

In `after`, `{..}` is multiplied or added first, in a step of its own; `(S)` is S written out; `.. + T` puts T where the
first matched term was, `T + ..` before the others; factors stay in their places where a product has `..`. `Z is X`: who
reads Z reads X. Steps that `after` lacks are gone. Other names are what the predicates of the rule find: functions,
whose names follow `if` where a rule is shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

STEP = re.compile(r"(\w+) (=|is) (.*)")
BOX = re.compile(r"(\w+)\((\w+)((?:, \w+ [\w ]+)*)\)")
PLUS = re.compile(r" \+ (?![^{(]*[})])")  # not in brackets
PRODUCT = re.compile(r"(?:(-?)([\w ]+|\(\w+ \+ \w+\)) \* )?(.*)")
ITEM = re.compile(r"\{([^}]*)\}|\((\w+)\)|(\w+)(?:\[([^\]]*)\])?(\.\.)?|\.\.")


@dataclass(frozen=True)
class Item:
    """`X[k]`, `X..`, `..`, `(X)` or `{sum}` in a product."""

    name: str = ""
    many: bool = False
    words: tuple[str, ...] = ()
    out: bool = False
    group: Sum | None = None


REST = Item("..", many=True)


@dataclass(frozen=True)
class Product:
    """`numbers`: names whose product the coefficient is; their sum where one of them is `+`."""

    items: tuple[Item, ...]
    numbers: tuple[str, ...] = ()
    negative: bool = False

    @cached_property
    def single(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if not item.many)

    @cached_property
    def many(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.many)


@dataclass(frozen=True)
class Sum:
    """`rest`: where the other terms stand, `first` or `last`; empty where there are none."""

    products: tuple[Product, ...]
    rest: str = ""


@dataclass(frozen=True)
class BoxOf:
    """`softmax(S, scale s)`: the kind, the step inside, and numbers by name."""

    kind: str
    of: str
    numbers: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Same:
    """`Z is X`."""

    name: str


Side = dict[str, Sum | BoxOf | Same]


def read_side(text: str) -> Side:
    """One side of a rule."""
    found: Side = {}
    for part in text.split(";"):
        step = STEP.fullmatch(part.strip())
        assert step is not None, part
        name, word, body = step.groups()
        box = BOX.fullmatch(body)
        if box is not None:
            numbers = (number.split() for number in box[3].split(", ")[1:])
            found[name] = BoxOf(box[1], box[2], tuple((key, tuple(names)) for key, *names in numbers))
        else:
            found[name] = Same(body) if word == "is" else read_sum(body)
    return found


def read_sum(text: str) -> Sum:
    parts = PLUS.split(text)
    rest = "first" if parts[0] == ".." else "last" if parts[-1] == ".." else ""
    return Sum(tuple(read_product(part) for part in parts if part != ".."), rest)


def read_product(text: str) -> Product:
    sign, numbers, factors = PRODUCT.fullmatch(text).groups()  # type: ignore[union-attr]  # it fits any text
    items = []
    for group, out, name, words, many in (found.groups() for found in ITEM.finditer(factors)):
        if group or out or name:
            holds = tuple(re.findall(r"no \w+|\w+", words or ""))
            items.append(Item(out or name or "", bool(many), holds, bool(out), read_sum(group) if group else None))
        else:
            items.append(REST)
    return Product(tuple(items), tuple(re.findall(r"\w+|\+", numbers or "")), bool(sign))
