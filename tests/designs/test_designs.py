"""Every design against plain loops, in float64: outputs and the gradients of all inputs and weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.shipped import shipped

from .case import N
from .cases import ATTENTION, BACKENDS, CASES, check, compiled, inputs_of, looped, normal, same
from .plain import loops

pytestmark = pytest.mark.usefixtures("in_blocks")

EACH = [(name, causal) for name, case in CASES.items() for causal in case.causal]
CAUSAL = "alibi epa_xl fmm1_causal fmm2_causal fmm3_causal fmm_fast_weight1 fmm_fast_weight2".split()
SPECS = Path(__file__).resolve().parents[2] / "specs"
backends = pytest.mark.parametrize("backend", BACKENDS)


@backends
@pytest.mark.parametrize(("name", "causal"), EACH)
def test_a_design_equals_its_plain_loops(name, causal, backend):
    check(name, compiled(name, backend, causal), inputs_of(name), causal)


@backends
@pytest.mark.parametrize("name", ATTENTION)
def test_keys_may_be_masked_even_all_of_a_row(name, backend):
    causal = CASES[name].causal[-1]
    key_mask = torch.tensor([[False, True, True, False, True], [False] * N])
    check(name, compiled(name, backend, causal), inputs_of(name), causal, key_mask=key_mask)


@backends
@pytest.mark.parametrize("name", [name for name in ATTENTION if CASES[name].masks])
def test_pairs_may_be_masked(name, backend):
    n, m = CASES[name].inputs[0], CASES[name].inputs[-1]
    mask = normal(torch.Generator().manual_seed(3), n, m) > 0
    mask[1] = False  # a row that sees nothing
    check(name, compiled(name, backend, False), inputs_of(name), False, mask=mask)


def _with_memory() -> list[str]:
    """The designs that take a second sequence, but for those whose test has one anyway."""
    return [name for name in ATTENTION if len(CASES[name].inputs) == 1 and "memory" in shipped(name).inputs]


@backends
@pytest.mark.parametrize(("n", "m"), [(3, 6), pytest.param(5, 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", _with_memory())
def test_a_second_sequence_gives_the_keys(name, n, m, backend):
    generator = torch.Generator().manual_seed(1)
    inputs = [normal(generator, 2, length, CASES[name].legs["f"]) for length in (n, m)]
    for causal in CASES[name].causal:
        check(name, compiled(name, backend, causal), inputs, causal)


def test_every_design_of_the_papers_with_keys_takes_a_second_sequence():
    families = ("tuformer", "fish", "mgk", "fmm", "epa")
    designs = {path.stem for family in families for path in (SPECS / family).glob("*.yaml")}
    alone = {"sigma_moe", "sigma_moe_regularised", "moa_regularised"}  # of single positions, or with losses over them
    assert designs - {*_with_memory()} == alone


@backends
@pytest.mark.parametrize(("n", "m"), [(2, 5), (5, 2), (1, 4), (4, 4)])
def test_cross_attention_puts_the_last_query_at_the_last_key(n, m, backend):
    generator = torch.Generator().manual_seed(1)
    inputs = [normal(generator, 2, length, CASES["cross"].legs["f"]) for length in (n, m)]
    check("cross", compiled("cross", backend, causal=True), inputs, True)


@backends
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["transformer_xl", "epa_xl"])
def test_a_longer_context_is_read(name, causal, backend):
    x, past = inputs_of(name), inputs_of(name, seed=2)
    context = torch.cat((past[0], x[0]), 1)
    check(name, compiled(name, backend, causal), [x[0], context], causal)


@backends
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_unless_told_otherwise(name, backend):
    x = inputs_of(name)
    same(compiled(name, backend)(*x), compiled(name, backend, causal=True)(*x), "output")


@backends
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["mgk_em", "smgk_em"])
def test_the_mean_responsibility_of_a_training_call_is_stored_after_it(name, causal, backend):
    module, (x,) = compiled(name, backend, causal), inputs_of(name)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module(x)
    same(module.state_dict()["pi"], before["pi"], "prior after an evaluation call")
    module.train()
    y = module(x)
    same(y, looped(name, before, [x], causal=causal), "output, by the old prior")
    priors = [loops("mgk_em_prior")(before, sequence, causal=causal) for sequence in x]
    same(module.state_dict()["pi"], torch.stack(priors).mean(0), "prior after a training call")
