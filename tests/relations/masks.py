"""The relations of float masks whose entries are large: beside them, a score is less than a rounding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tensornet_attn.ops import OPS
from tests.random_call import F64, usable
from tests.relations.precision import chooses
from tests.relations.subject import NotApplicable, Results, Rows, Subject

LEAST = {F64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.05}  # errors that are allowed


def large_masks_are_scores(subject: Subject) -> None:
    """Float masks of large, different entries, or huge in whole rows, give the outputs and gradients of the reference.

    Errors are at most 1e-8, in float32 1e-4, or four times those of the reference in that dtype. Gradients are not
    compared where a product multiplies them by a sum of masks. Torch's own attention computes without its fused kernel,
    whose gradients are wrong in such rows (docs/pytorch.md).
    """
    dtype = subject.draw.choice([F64, torch.float32])
    check_masks(subject, dtype, dtype)


def wide_biases_fit_half_layers(subject: Subject) -> None:
    """A float32 mask of large entries on a half-precision layer gives the outputs and gradients of the reference.

    Errors are at most .05, or four times those of the reference in that dtype. Rows of huge entries are not compared in
    float16, which adds their scores (docs/pytorch.md).
    """
    if chooses(subject.graph):
        raise NotApplicable("rounding decides what is chosen")
    check_masks(subject, subject.draw.choice([torch.bfloat16, torch.float16]), torch.float32)


def check_masks(subject: Subject, dtype: torch.dtype, of_mask: torch.dtype) -> None:
    """Compares a layer with the reference in float64, under large masks of another dtype."""
    places = subject.module.mask_places
    if places.maps or not all(OPS[kind].takes_float_mask for _, kind, _ in places.places):
        raise NotApplicable("the call takes no float mask")
    typed, compared = replace(subject, dtype=dtype), False
    rows = subject.rows((2,), 9, 11)
    masks = large_masks(rows, subject.draw, of_mask)
    for mask in [next(masks)] if dtype == torch.float16 else masks:

        def outcome(of: Subject, module: Any) -> Results:
            leaves, bias = [x.to(of.dtype) for x in rows.leaves], mask.to(F64 if of is subject else of_mask)  # noqa: B023
            with sdpa_kernel(SDPBackend.MATH):
                return of.results(lambda *xs: of.run(*xs, mask=bias, module=module), leaves, module)

        wanted, rounded = outcome(subject, subject.oracle), outcome(typed, typed.oracle)
        if not (usable(wanted) and usable(rounded)):
            continue
        if any(factor.abs().max() > 1e3 for factor in factors(subject, rows, mask)):
            wanted = {name: value for name, value in wanted.items() if "gradient" not in name}
        compared, allowed = True, errors(rounded, wanted)
        for name, error in errors(outcome(typed, typed.module), wanted).items():
            bound = max(LEAST[dtype], 4 * allowed[name])
            assert error <= bound, f"{name}: error {error:.1e} of {dtype}, {bound:.1e} allowed"
    if not compared:
        raise NotApplicable("the numbers are too large to compare")


def large_masks(rows: Rows, draw: random.Random, dtype: torch.dtype) -> Iterator[Tensor]:
    """[n, m], a fifth hidden: entries of every size, and rows of one huge number, of three, and of zeros."""
    generator, shape = torch.Generator().manual_seed(draw.randrange(2**31)), (rows.queries, rows.keys)
    hidden = torch.rand(shape, generator=generator) < 0.2
    scale = draw.choice([1e4, 1e6, 1e30])
    yield (torch.randn(shape, generator=generator, dtype=dtype) * scale).masked_fill(hidden, -torch.inf)
    mask = torch.zeros(shape, dtype=dtype).masked_fill(hidden, -torch.inf)
    mask[::3] = torch.finfo(dtype).min
    mask[1::3] = -1e25 * (1 + torch.arange(rows.keys) % 3) / 3  # beside these, a score is less than a rounding
    yield mask


def factors(subject: Subject, rows: Rows, mask: Tensor) -> Iterator[Tensor]:
    """The steps in products of several factors."""
    terms = [term for step in subject.graph.steps if step.contraction is not None for term in step.contraction.terms]
    names = {use.name for term in terms if len(term.factors) > 1 for use in term.factors}
    for name in names & subject.graph.step.keys():
        yield subject.run(*rows.leaves, mask=mask.to(F64), module=partial(captured, subject, name))


def captured(subject: Subject, step: str, *inputs: Tensor, **options: Any) -> Tensor:
    value: Tensor = subject.oracle.capture(*inputs, step, **options)
    return value


def errors(outcome: Results, wanted: Results) -> dict[str, float]:
    """The largest error of each result, relative to its largest number, or to 1."""
    none = torch.zeros(())
    pairs = {
        name: (none if outcome[name] is None else outcome[name], none if want is None else want)
        for name, want in wanted.items()
    }
    return {name: float((x - y).abs().max() / y.abs().max().clamp(min=1)) for name, (x, y) in pairs.items()}
