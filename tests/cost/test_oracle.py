"""What `cost/` predicts of each shipped design equals what its modules do: multiply-adds, and floats saved."""

from __future__ import annotations

import pytest

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tests.cost.oracle import Work, layer, lengths_of, measured, of_nodes, predicted
from tests.shipped import graph_of

# Why the figures of a design may differ, and which designs: those named differ, and no others.
REASONS = {
    "a delta rule counts by its definition, one key at a time; in chunks it multiplies more, and copies operands": (
        "comba fast_weight1 fast_weight2 fmm_fast_weight1 fmm_fast_weight2 gated_deltanet gated_deltaproduct kda rwkv7"
    ),
    "decays run in groups of four chunks, with padding and factors that are not counted": (
        "gla gsa mamba2 minimax retnet rwkv4"
    ),
    "masks do not reduce the count, but a block of queries reads no keys that they hide from all its rows": (
        "cope gemma2_local stick_breaking thsa_xl"
    ),
    "row sums are computed although nothing divides by them, and a core multiplies sums of keys by elements": (
        "abc kernel_fish kernel_gfish"
    ),
    "a weight whose legs lie in another order than its product needs is copied, and the copy kept": (
        "deepseek_moe mixtral qwen2_moe"
    ),
    "a sum over keys of products of elements is computed as one product of matrices": "glfish hard_glfish",
    "values that depend on no input are laid out for each element of the batch": "fmm1_rows fmm2_rows",
    "a scan that is read once keeps its negated rates": "mamba1",
    "dropout of scores keeps its factors, and a loss sums elements": "moa_regularised sigma_moe_regularised",
    "a product reads part of a padded result in place": "skip_left",
}
FORWARD_AGAIN = "what differs in the forward differs in the backward"
BACKWARD_REASONS = {
    FORWARD_AGAIN: (
        "abc comba cope fast_weight1 fast_weight2 fmm1_rows fmm2_rows fmm_fast_weight1 fmm_fast_weight2 gated_deltanet "
        "gated_deltaproduct gemma2_local gla glfish gsa hard_glfish kda kernel_gfish mamba2 minimax retnet rwkv4 rwkv7 "
        "stick_breaking thsa_xl"
    ),
    "the gradient of row sums, or of a log-sum-exp, adds up products of elements": (
        "mgk_hard smgk_hard thsa_elu thsa_square thsa_kron"
    ),
    "a convolution of each feature by itself, and a sum of keys times ones, multiply elements": "fox lfm2",
}
KERNEL_REASONS = {
    "the gradients of log-sum-exps and of noise add up products of elements": (
        "gfish mgk mgk_em mgk_hard mgk_mqa smgk smgk_em smgk_hard softmax_mgk softmax_smgk"
    ),
    "programs add up a gradient, which none of them multiplies": (
        "thsa thsa_low_rank thsa_poly thsa_xl trainable_heads_only"
    ),
    "a sum over one entry is no product": "skip_left",
}
CHECKS = {
    "forward": REASONS,
    "backward": BACKWARD_REASONS,
    "cpp": KERNEL_REASONS
    | {
        "positions between two entries are interpolated": "cope",
        "scores of relative positions are looked up": "deberta_v2",
        "values of width one multiply elements": "thsa_kron",
    },
    "triton": KERNEL_REASONS | {"a pair of elements has gradients of two terms": "fmm1_rows fmm2_rows"},
}
EXPLAINED = {
    check: {name: reason for reason, names in reasons.items() for name in names.split()}
    for check, reasons in CHECKS.items()
}
BYTES = (0.99, 7)  # measured bytes per predicted one: temporaries of kernels are not counted
SIZES = [(64, 64), pytest.param((128, 1024), marks=pytest.mark.slow)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", ta.list_designs())
def test_work_is_as_predicted(name: str, sizes: tuple[int, int]) -> None:
    module = layer(name)
    schedule = module.plan.schedule
    lengths = lengths_of(schedule, *sizes)
    price, work = (sum(rows.values(), Work()) for rows in (predicted(schedule, lengths), measured(module, lengths)))
    same = (price.macs, price.saved) == (work.macs, work.saved)
    told = f"predicted {price}, measured {work}"
    assert same != (name in EXPLAINED["forward"]), f"{told}; {EXPLAINED['forward'].get(name, 'no reason')}"
    gradients = price.backward == work.backward
    assert gradients != (name in EXPLAINED["backward"]), f"backward: {told}"
    assert name in EXPLAINED["forward"] or BYTES[0] < work.bytes / price.bytes < BYTES[1]


@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("name", ta.list_designs())
def test_kernels_multiply_as_predicted(name: str, backend: str) -> None:
    schedule = plan_of(graph_of(name), backend=backend).schedule
    lengths = lengths_of(schedule, 64, 64)
    nodes, price = of_nodes(schedule, lengths), predicted(schedule, lengths)
    differ = any((work.macs, work.backward) != (price[step].macs, price[step].backward) for step, work in nodes.items())
    assert differ == (name in EXPLAINED[backend]), f"predicted {price}, by nodes {nodes}"


@pytest.mark.parametrize("check", CHECKS)
def test_few_designs_need_a_reason(check: str) -> None:
    assert len(CHECKS[check]) <= 10
    assert len(ta.list_designs()) - len(EXPLAINED[check]) >= 120
    assert {*EXPLAINED[check]} <= {*ta.list_designs()}


def test_the_oracle_counts_what_torch_multiplies_and_keeps() -> None:
    """By hand: mhsa with n queries, f features, h heads of width d."""
    module, (n, f, h, d) = layer("mhsa"), (64, 512, 8, 64)
    work = sum(measured(module, lengths_of(module.plan.schedule, n, n)).values(), Work())
    assert graph_of("mhsa").leg["f"].size == f
    assert work.macs == 2 * (4 * n * f * h * d + 2 * n * n * h * d)
    assert work.backward == 2 * work.macs
    assert work.saved == 2 * (n * f + 4 * n * h * d + n * h)  # x, queries, keys, values, result; log-sum-exps
