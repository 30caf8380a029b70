"""Products of rows that overflow at hidden pairs, beside maps with gradients in one `keep`, or in a map itself."""

from __future__ import annotations

import pytest
import torch

from tests.relations.subject import Subject
from tests.relations.text import Data, normal_form
from tests.tiles.test_cpp import needs_compiler

HEAD = {
    "tensornet": 1,
    "legs": {"n": "query", "m": "key", "h": "head 2", "d": 4},
    "inputs": {"q": "n h d", "k": "m h d", "a": "n h d", "b": "m h d"},
    "output": "y",
}
D = {"D": {"map": "sigmoid", "of": "a[n h d] b[m h d] -> h n m"}}
ONE_PRODUCT = D | {"A": {"keep": "m", "of": "q[n h d] k[m h d] D[h n m] -> h n m"}}
TWO_MAPS = D | {"S": "q[n h d] k[m h d] -> h n m", "A": {"keep": "m", "of": "S[h n m] D[h n m] -> h n m"}}
MAPPED = {
    name: {"A": {"keep": "m", "of": {"map": name, "of": "q[n h d] k[m h d] -> h n m"}}}
    for name in ("silu", "gelu", "sin")
}


@pytest.mark.parametrize(
    "backend", ["reference", "torch", "blocks", "decoding", pytest.param("cpp", marks=needs_compiler)]
)
@pytest.mark.parametrize("maps", [ONE_PRODUCT, TWO_MAPS, *MAPPED.values()], ids=["one product", "two maps", *MAPPED])
def test_a_keep_hides_products_before_they_are_multiplied(maps: Data, backend: str) -> None:
    """Outputs and gradients are those of the reference, and finite."""
    design = HEAD | {"name": "gated", "diagram": maps | {"y": "A[h n m] b[m h d] + a[n h d] -> n h d"}}
    subject, alone = Subject(normal_form(design), backend, 2), torch.tensor([2])
    rows = subject.rows((2,), 5, 7)
    mask = subject.mask(5, 7).index_fill(0, alone, False).index_fill(1, alone, False)
    held = [
        x.index_fill(-3, alone, 1e200) if leaf.name in ("q", "k") else x
        for leaf, x in zip(subject.leaves, rows.leaves, strict=True)
    ]
    subject.same(
        lambda *xs: subject.run(*xs, mask=mask),
        lambda *xs: subject.run(*xs, mask=mask, module=subject.oracle),
        held,
        subject.oracle,
    )
