"""Areas of what masks show: no pair that a formula shows is outside of them, and what follows from that."""

from __future__ import annotations

import random
from math import inf

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.graph.causal import areas_seen
from tensornet_attn.graph.visibility import condition, hidden_areas, interval, visible_areas
from tensornet_attn.ir.areas import Area, complement, distances
from tensornet_attn.ir.arithmetic import number
from tensornet_attn.ir.steps import Function
from tensornet_attn.limits import AREAS
from tensornet_attn.ops import MASKS
from tests.masked import design

ATOMS = (
    ("causal", ()), ("causal", (2,)), ("causal", (-3,)), ("band", (2,)), ("window", (4, -1)), ("window", (-2, 5)),
    ("prefix", (3,)), ("global", (2,)), ("dilated", (3,)), ("block", (4,)), ("block_causal", (3,)),
)  # fmt: skip
QUERY, KEY = torch.arange(-4, 15)[:, None], torch.arange(15)


def formula(draw: random.Random, depth: int) -> Function:
    word = draw.choice(["and", "or", "not", "", ""]) if depth else ""
    if not word:
        name, numbers = draw.choice(ATOMS)
        return Function(name, tuple(map(number, numbers)))
    return Function(word, tuple(formula(draw, depth - 1) for _ in range(1 if word == "not" else draw.randint(2, 3))))


def sees(mask: Function) -> torch.Tensor:
    """The formula from the references of its masks."""
    if mask.name in ("and", "or", "not"):
        parts = [sees(part) for part in mask.arguments if isinstance(part, Function)]
        return ~parts[0] if mask.name == "not" else torch.stack(parts).amin(0) if mask.name == "and" else sum(parts) > 0
    numbers = [-part.of.value if hasattr(part, "of") else part.value for part in mask.arguments]  # type: ignore[union-attr]
    row = MASKS[mask.name]
    numbers += row.defaults[len(numbers) :]
    return row.reference(QUERY, KEY, *numbers).expand(len(QUERY), len(KEY))


def covered(areas: tuple[Area, ...]) -> torch.Tensor:
    found = torch.zeros(len(QUERY), len(KEY), dtype=torch.bool)
    for area in areas:
        inside = torch.ones_like(found)
        for values, (least, most) in zip((QUERY - KEY, QUERY, KEY), area.spans, strict=True):
            inside &= (values >= least) & (values <= most)
        found |= inside
    return found


@pytest.mark.parametrize("seed", range(40))
def test_no_pair_that_a_formula_shows_or_hides_is_outside(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        masks = [formula(draw, draw.randint(0, 3)) for _ in range(draw.randint(1, 2))]
        plain = torch.stack([sees(mask) for mask in masks]).amin(0)
        areas = visible_areas(masks, {})
        assert not (plain & ~covered(areas)).any()
        assert not (~plain & ~covered(hidden_areas(masks, {}))).any()
        if interval(masks, {}):
            assert (plain == covered(areas)).all()
        near, far = distances(areas) or (1, 0)
        gaps = (QUERY - KEY)[plain]
        assert not len(gaps) or near <= gaps.min() <= gaps.max() <= far


@pytest.mark.parametrize("seed", range(10))
def test_the_text_is_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        mask = formula(draw, 3)
        text = condition(mask, lambda tree: str(-tree.of.value if hasattr(tree, "of") else tree.value), PLACES)  # type: ignore[union-attr]
        found = eval(text, {"query": QUERY, "key": KEY})  # noqa: S307  # the package's own text
        assert (found == sees(mask)).all()


PLACES = {"query": "query", "key": "key", "distance": "(query - key)"}


def test_bounds_follow_from_bounds() -> None:
    assert Area(query=(10, inf), key=(-inf, 3)).closed() == Area((7, inf), (10, inf), (0, 3))
    assert Area(distance=(1, inf), query=(-inf, 0)).closed() is None  # no key stands before the first
    assert complement((Area(distance=(0, inf)),)) == (Area(distance=(-inf, -1)),)
    assert len(complement((Area(key=(0, 3)), Area(distance=(-1, 1))))) > 1


def test_where_a_key_counts() -> None:
    def found(mask: str, read: str = "A[h n m] V[m h d] Wo[h d f] -> n f") -> tuple[float, float] | None:
        source = design(mask)
        source["diagram"]["y"] = read
        return distances(areas_seen(ta.build(ta.Design(**source))))

    assert found("window(4, 1)") == (-1, 4)
    assert found("causal and prefix(3)") == (0, inf)
    assert found("not band(2)") == (-inf, inf)
    assert found("window(4, 1)", "A[h n m] V[m h d] Wo[h d f] + S[h n m] V[m h d] Wo[h d f] -> n f") == (-inf, inf)


def test_areas_that_are_too_many_are_no_interval() -> None:
    mask = Function("or", tuple(Function("window", (number(3 * i), number(-3 * i))) for i in range(12)))
    assert distances(visible_areas([mask], {})) == (0, 33)
    assert len(visible_areas([mask], {})) <= AREAS
    assert not interval([mask], {})
    assert interval([Function("causal"), Function("band", (number(3),))], {})
