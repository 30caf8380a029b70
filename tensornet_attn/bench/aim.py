"""Measures the targets, each against the one contestant that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tensornet_attn import compiler
from tensornet_attn.bench.case import TRAINING, Case
from tensornet_attn.bench.results import Result
from tensornet_attn.bench.run import Bench, Options
from tensornet_attn.bench.targets import BATCH, Target


def target_results(
    targets: Sequence[Target], options: Options, say: Callable[[str], None], seed: int = 0
) -> Iterator[Result]:
    """A result for each target in turn, as it is made; of `options` only how long to measure counts."""
    for target in targets:
        own = replace(options, against=(target.against,), backends=("torch",), passes=(TRAINING,))
        yield from Bench(own, say).results([case_of(target, seed)])


def case_of(target: Target, seed: int = 0) -> Case:
    design = compiler.load(target.design, legs=target.legs, settings=target.settings)
    return Case(design, target.n, BATCH, seed=seed)
