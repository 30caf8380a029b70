"""Comparison with the reference, contestants that cannot or may not run, notes, and what is predicted of memory."""

from __future__ import annotations

import shutil

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.bench import compare, contestants
from tensornet_attn.bench.baselines import LAYERS
from tensornet_attn.bench.baselines.multi_head import MultiHead
from tensornet_attn.bench.bench import Bench, Options
from tensornet_attn.bench.case import FORWARD, PASSES, TRAINING, Case
from tensornet_attn.bench.compare import errors, oracle, reference_values, values_of
from tensornet_attn.bench.contestants import AGAINST, MAKERS, SkippedError, need_compiler
from tensornet_attn.bench.floor import pair_bytes, pair_elements, reference_bytes
from tensornet_attn.bench.results import PassResult
from tests.designs.cases import CASES
from tests.refusals import refusal

SMALL = {"f": 8, "h": 2}
EVERY = ("reference", "eager", "sdpa", "softmax")
QUICK = {"repeats": 3, "seconds": 0.0}


def case_of(name: str = "mhsa", n: int = 6, **options: object) -> Case:
    legs = SMALL if name == "mhsa" else CASES[name].legs
    settings = {} if name == "mhsa" else CASES[name].settings
    return Case(ta.load(name, legs=legs, settings=settings), n, 2, **options)


def measured(case: Case, *against: str, passes: tuple[str, ...] = (FORWARD,), **options: object) -> list[PassResult]:
    return list(Bench(Options(against, passes=passes, **(QUICK | options))).results([case]))


@pytest.mark.parametrize("kind", PASSES)
@pytest.mark.parametrize("name", [name for name in CASES if name in LAYERS])
def test_our_backend_and_the_hand_written_layer_pass_the_comparison(name: str, kind: str) -> None:
    case = case_of(name)
    wanted = oracle(case, 1e9)
    for who in ("torch", "eager"):
        found = contestants.contestant(who, case, kind, 1e9)
        values = values_of(found.module, case, kind)
        assert set(values) == ({"output"} if kind == FORWARD else set(wanted.values))
        assert wanted.error(values) < 1e-3  # a gradient of zero counts by the largest


def test_every_contestant_is_measured_and_ratios_are_over_ours() -> None:
    (forward, training) = measured(case_of(), *EVERY, passes=PASSES)
    assert (forward.kind, training.kind) == PASSES
    for result in (forward, training):
        assert [entry.name for entry in result.entries] == ["torch", *EVERY]
        assert {entry.status for entry in result.entries} == {"measured"}
        assert {entry.rounds for entry in result.entries} == {3}
        assert result.entry("torch").ratio is None
        for entry in result.entries[1:]:
            assert entry.ratio is not None
            mine = result.entry("torch").seconds.median
            assert entry.ratio.median == pytest.approx(entry.seconds.median / mine)
    assert training.entry("eager").peak_bytes > forward.entry("eager").peak_bytes > 0
    assert training.entry("softmax").note == "mhsa of f 8, h 2: another function"
    assert forward.legs == {"n": 6, "m": 6, "f": 8, "h": 2, "d": 4}


def test_a_wrong_contestant_is_told_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MultiHead.forward
    monkeypatch.setattr(MultiHead, "forward", lambda self, x: 1.01 * right(self, x))
    (result,) = measured(case_of(), "eager", "reference")
    entry = result.entry("eager")
    assert (entry.status, entry.seconds, entry.ratio) == ("wrong", None, None)
    assert entry.reason == ("the relative error of its output is 1.0e-02 at n = 6; the tolerance is 1.0e-04.")
    assert result.entry("reference").status == "measured"


def test_a_wrong_gradient_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MultiHead.forward

    def forward(self: MultiHead, x: torch.Tensor) -> torch.Tensor:
        y = right(self, x)
        return y.detach() + 0.5 * (y - y.detach())

    monkeypatch.setattr(MultiHead, "forward", forward)
    (first, second) = measured(case_of(), "eager", passes=PASSES)
    assert first.entry("eager").status == "measured"
    assert second.entry("eager").status == "wrong"
    assert "gradient of " in second.entry("eager").reason


def test_numbers_that_are_none_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MultiHead, "forward", lambda self, x: x * torch.nan)
    assert measured(case_of(), "eager")[0].entry("eager").status == "wrong"


def test_a_topk_that_chose_otherwise_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensornet_attn.bench.baselines.experts import ExpertAttention

    monkeypatch.setattr(ExpertAttention, "forward", lambda self, x: x)
    entry = measured(case_of("epa"), "eager")[0].entry("eager")
    assert entry.reason.endswith(". A topk may select differently if gates are nearly equal; try another --seed.")


def test_who_raises_or_runs_out_of_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, sentence in [
        (ValueError("bad\nworse"), "ValueError: bad"),
        (torch.OutOfMemoryError("tried 9 GiB"), "out of memory: tried 9 GiB"),
    ]:

        def forward(self: MultiHead, x: torch.Tensor, error: Exception = error) -> torch.Tensor:
            raise error

        monkeypatch.setattr(MultiHead, "forward", forward)
        entry = measured(case_of(), "eager")[0].entry("eager")
        assert (entry.status, entry.reason) == ("failed", sentence)


def test_without_ours_there_is_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(case: Case, kind: str, limit: float) -> None:
        raise SkippedError("not today.")

    monkeypatch.setitem(MAKERS, "torch", refuse)
    (result,) = measured(case_of(), "eager")
    assert (result.entry("torch").status, result.entry("torch").reason) == ("skipped", "not today.")
    assert result.entry("eager").status == "measured"
    assert result.entry("eager").ratio is None


SKIPS = [
    ("thsa", "sdpa", FORWARD, "'thsa' mixes scores before its softmax, so fused attention cannot compute it"),
    ("linear", "flex", FORWARD, "'linear' has no softmax, so fused attention cannot compute it"),
    ("mlp", "sdpa", FORWARD, "'mlp' has no attention, so fused attention cannot compute it"),
    ("mlp", "softmax", FORWARD, "'mlp' has no key leg, so it is not an attention."),
    ("mhsa", "flex", TRAINING, "flex_attention has no backward on the CPU."),
]


@pytest.mark.parametrize(("name", "who", "kind", "reason"), SKIPS)
def test_what_cannot_run_says_why(name: str, who: str, kind: str, reason: str) -> None:
    with pytest.raises(SkippedError) as refusal:
        contestants.contestant(who, case_of(name), kind, 1e9)
    assert str(refusal.value).removesuffix("; compare with 'softmax' instead.") == reason


def test_a_design_of_ones_own_has_no_hand_written_layer(tmp_path) -> None:
    path = tmp_path / "mhsa.yaml"
    path.write_text("tensornet: 1\nname: mhsa\nextends: thsa\nlegs: {f: 8, r: head 4, s: head 4}\n")
    (result,) = measured(Case(ta.load(str(path)), 6), "reference", "eager", "sdpa", "softmax")
    assert [entry.status for entry in result.entries] == ["measured", "measured", "skipped", "skipped", "measured"]
    assert result.entry("eager").reason == "'mhsa' is not a shipped design, so it has no handwritten layer."
    assert result.entry("sdpa").reason == result.entry("eager").reason
    assert result.entry("softmax").note == "mhsa of f 8, h 8: another function"


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    bench = Bench(Options(("compile", "flex"), ("torch", "inductor"), (FORWARD,), **QUICK))
    (result,) = bench.results([case_of()])
    wanted = "torch.compile needs a C++ compiler on the CPU; neither g++ nor clang++ is on the PATH."
    assert {name: result.entry(name).reason for name in ("inductor", "compile", "flex")} == dict.fromkeys(
        ("inductor", "compile", "flex"), wanted
    )
    monkeypatch.setattr(contestants, "find_spec", lambda name: None)
    with pytest.raises(SkippedError, match=r"^torch.compile needs triton on a GPU, which is not installed.$"):
        need_compiler("cuda")


def test_what_would_be_too_large_is_left_out() -> None:
    (result,) = measured(case_of(n=64), *EVERY, memory=1e-4)
    reason = "its tensors over pairs of positions would take about 0.0 GiB, more than the limit of 0.0 GiB (--memory)."
    assert {entry.name: entry.reason for entry in result.entries if entry.status == "skipped"} == {
        "reference": reason,
        "eager": reason,
    }
    assert {entry.checked_n for entry in result.entries if entry.status == "measured"} == {16}  # the comparison's n


@pytest.mark.parametrize("causal", [False, True])
def test_who_keeps_no_pairs_is_not_left_out(causal: bool) -> None:
    small = case_of("hard_lfish", n=64, causal=causal)
    assert contestant_of(small, "eager")
    for name, left_out in [("hard_lfish", "reference"), *([("linear", "eager")] if causal else [])]:
        with pytest.raises(SkippedError):
            contestant_of(case_of(name, n=64, causal=causal), left_out)


def contestant_of(case: Case, who: str) -> contestants.Contestant:
    return contestants.contestant(who, case, FORWARD, 1e3)


def test_where_memory_ends_before_the_limit_the_comparison_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, exact = list[int](), reference_values

    def short_of_memory(case: Case, dtype: str) -> compare.Values:
        asked.append(case.n)
        if case.n > 2:
            raise torch.OutOfMemoryError("tried 9 GiB")
        return exact(case, dtype)

    monkeypatch.setattr(compare, "reference_values", short_of_memory)
    assert oracle(case_of(n=9), 1e9).n == 2
    assert asked == [9, 4, 2, 2]
    monkeypatch.setattr(compare, "reference_values", lambda case, dtype: short_of_memory(case.at(9), dtype))
    with pytest.raises(torch.OutOfMemoryError):
        oracle(case_of(n=9), 1e9)


def test_predicted_bytes() -> None:
    case = case_of(n=10)
    assert pair_elements(case.graph, case.lengths) == [200, 200]  # 2 heads of 100 pairs: scores, maps
    assert pair_bytes(case.graph, case, kept=False) == 2 * 4 * 3 * 200
    assert pair_bytes(case.graph, case, kept=True) == 2 * 4 * (3 * 200 + 400)
    assert reference_bytes(case) == 8 * 4 * 400
    assert pair_bytes(case_of("mlp").graph, case_of("mlp"), kept=True) == 0


def test_errors_are_relative_and_small_gradients_count_by_the_largest() -> None:
    want = {"output": torch.full((4,), 2.0), "big": torch.full((3,), 10.0), "none": torch.zeros(2)}
    got = {"output": want["output"] + 0.2, "big": want["big"] * 1.5, "none": torch.full((2,), 0.001)}
    assert errors(got, want) == pytest.approx({"output": 0.1, "big": 0.5, "none": 0.1})


def test_sequences_one_at_a_time_give_the_gradients_of_the_batch() -> None:
    case = case_of(dtype="float64")
    values = reference_values(case, "float64")
    module = case.loaded(ta.reference(case.design))
    want = values_of(module, case, TRAINING)
    assert values.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(values[name], value, rtol=1e-9, atol=1e-10)


def test_where_the_reference_itself_is_unsure_more_is_allowed() -> None:
    case = case_of(dtype="bfloat16")
    wanted = oracle(case, 1e9)
    assert all(bound >= compare.FLOOR["bfloat16"] for bound in wanted.allowed.values())
    assert measured(case, *EVERY)[0].entry("eager").status == "measured"


@pytest.mark.parametrize(("name", "random"), [("mhsa", False), ("fish", True), ("mgk_em", True)])
def test_which_designs_train_at_random(name: str, random: bool) -> None:
    assert case_of(name).random is random
    (result,) = measured(case_of(name), "eager", passes=(TRAINING,))
    assert {entry.status for entry in result.entries} == {"measured"}


def test_dropout_is_random_as_well() -> None:
    diagram = {"A": {"softmax": "m", "dropout": 0.1, "of": "Q[n h d] K[m h d] -> h n m"}}
    design = ta.load({"tensornet": 1, "name": "dropping", "extends": "mhsa", "diagram": diagram})
    assert Case(design, 4).random


def test_both_inputs_are_given_and_a_default_is_not() -> None:
    assert [list(x.shape) for x in case_of("cross").inputs()] == [[2, 6, 12], [2, 6, 12]]
    assert len(case_of("transformer_xl").inputs()) == 1
    assert {len(measured(case_of(name), "eager")) for name in ("cross", "transformer_xl")} == {1}


def test_unknown_names_and_devices() -> None:
    assert refusal(Options, ("eagr",)) == "there is no contestant 'eagr': did you mean 'eager'?"
    assert refusal(Options, backends=("jax",)) == (
        "there is no backend to measure 'jax': known here: auto, cpp, inductor, torch, triton."
    )
    assert refusal(Options, backends=()) == "name a backend to measure, e.g. torch."
    known = {"reference", "eager", "compile", "sdpa", "softmax", "flex", "fused", "dense", "fla"}
    assert set(AGAINST) == known


@pytest.mark.slow
def test_what_is_compiled_passes_the_comparison() -> None:
    bench = Bench(Options(("compile", "flex"), ("torch", "inductor"), PASSES, **QUICK))
    (forward, training) = bench.results([case_of("alibi")])
    assert {entry.name: entry.status for entry in forward.entries} == dict.fromkeys(
        ("torch", "inductor", "compile", "flex"), "measured"
    )
    assert {entry.name: entry.status for entry in training.entries} == {
        "torch": "measured",
        "inductor": "measured",
        "compile": "measured",
        "flex": "skipped",
    }
