"""The notation of rules: executable texts `before -> after` over sums of products and boxes.

    S = .. + c * X[keys].. ..; A = softmax(S)   ->   S = .. + c * {X..} ..; A = softmax(S)

Steps are separated by `;`. A rule applies at the last step of `before`, or at the first with `first`; each other step
is read only by the next. In a product, `X` is a factor, `X..` the remaining factors, `..` the others, and `c *` binds
the coefficient, which is 1 otherwise. In a sum, `..` are the other terms. Words in brackets are conditions on a factor:
`n` (has the query leg), `m` (has the key leg), `keys` (has a leg of the softmax), `held` (depends only on weights),
`map` (is an attention map), `no m`; a function of the rule chooses `chosen` and `terms`.

In `after`, `{..}` is computed first, in a separate step; `(S)` is S inlined; `.. + T` puts T in the place of the first
matched term, `T + ..` before the other terms; factors keep their places if a product has `..`. `Z is X` means that
readers of Z read X. Steps that `after` lacks are removed. Predicates of the rule bind the other names; they are
functions, whose names follow `if` in the text of a rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

STEP = re.compile(r"(\w+) (=|is) (.*)")
BOX = re.compile(r"(\w+)\((\w+)\)")
PLUS = re.compile(r" \+ (?![^{(]*[})])")  # outside of brackets
PRODUCT = re.compile(r"(?:(-?)([\w ]+) \* )?(.*)")
ITEM = re.compile(r"\{([^}]*)\}|\((\w+)\)|(\w+)(?:\[([^\]]*)\])?(\.\.)?|\.\.")


@dataclass(frozen=True)
class PatternItem:
    """An item of a product: `X[k]`, `X..`, `..`, `(X)` or `{sum}`."""

    name: str = ""
    many: bool = False
    words: tuple[str, ...] = ()
    out: bool = False
    group: PatternSum | None = None


REST = PatternItem("..", many=True)


@dataclass(frozen=True)
class PatternProduct:
    """`numbers` are names; the coefficient is their product."""

    items: tuple[PatternItem, ...]
    numbers: tuple[str, ...] = ()
    negative: bool = False

    @cached_property
    def single(self) -> tuple[PatternItem, ...]:
        return tuple(item for item in self.items if not item.many)

    @cached_property
    def many(self) -> tuple[PatternItem, ...]:
        return tuple(item for item in self.items if item.many)


@dataclass(frozen=True)
class PatternSum:
    """`rest` is the place of the other terms, `first` or `last`; empty if there are none."""

    products: tuple[PatternProduct, ...]
    rest: str = ""


@dataclass(frozen=True)
class BoxOf:
    """A box such as `softmax(S)`: its kind and its operand."""

    kind: str
    of: str


@dataclass(frozen=True)
class Same:
    """The statement `Z is X`."""

    name: str


Side = dict[str, PatternSum | BoxOf | Same]


def read_side(text: str) -> Side:
    """Parses one side of a rule."""
    side: Side = {}
    for statement in text.split(";"):
        step = STEP.fullmatch(statement.strip())
        assert step is not None, statement
        name, word, body = step.groups()
        box = BOX.fullmatch(body)
        if box is not None:
            side[name] = BoxOf(box[1], box[2])
        else:
            side[name] = Same(body) if word == "is" else read_sum(body)
    return side


def read_sum(text: str) -> PatternSum:
    products = PLUS.split(text)
    rest = "first" if products[0] == ".." else "last" if products[-1] == ".." else ""
    return PatternSum(tuple(read_product(product_text) for product_text in products if product_text != ".."), rest)


def read_product(text: str) -> PatternProduct:
    sign, numbers, factors = PRODUCT.fullmatch(text).groups()  # type: ignore[union-attr]  # it matches any text
    items = []
    for group, out, name, words, many in (token.groups() for token in ITEM.finditer(factors)):
        if group or out or name:
            holds = tuple(re.findall(r"no \w+|\w+", words or ""))
            items.append(
                PatternItem(out or name or "", bool(many), holds, bool(out), read_sum(group) if group else None)
            )
        else:
            items.append(REST)
    return PatternProduct(tuple(items), tuple((numbers or "").split()), bool(sign))
