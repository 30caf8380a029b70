"""From a claim to a finished trial, with children that answer at once: which rungs, which state, which reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tensornet_attn.errors import InputError
from tensornet_attn.search.evolve import Confirmation, draft
from tensornet_attn.search.process import Bound, JobOutcome
from tensornet_attn.search.read import load
from tensornet_attn.search.study import CLIMB, LATENCY, STATIC, Job, Rung, Study
from tensornet_attn.search.trial import BOUND, COMPLETE, DIVERGED, FAILED, LATE, MEMORY, RungResult, Trial, trial_from
from tensornet_attn.search.worker import Evaluation, check_hope
from tests.refusals import refusal
from tests.search import made

TWO = (Rung(task="mqar", keep=0.5), Rung(task="copy"))


@dataclass
class Children:
    """Stands for the processes of trials: `answer` says what each job gives."""

    answer: Callable[[Job], Any]
    jobs: list[Job] = field(default_factory=list)

    def run(self, job: Job, log: Path, bound: Bound) -> JobOutcome:
        self.jobs.append(job)
        found = self.answer(job)
        return found if isinstance(found, JobOutcome) else JobOutcome(COMPLETE, found)

    @property
    def kinds(self) -> list[Any]:
        return [(job.kind, job.rung) if job.kind == CLIMB else job.kind for job in self.jobs]


def answered(job: Job) -> Any:
    """A loss of 4.1; qualities 0.1, 0.2 and so on; a latency of 2 ms."""
    if job.kind == CLIMB:
        return [((place + 1) / 10, f"run{place}") for place, _ in enumerate(job.rates)]
    return {STATIC: 4.1, LATENCY: 0.002}[job.kind]


def evaluated(
    study: Study,
    tmp_path: Path,
    answer: Callable[[Job], Any] = answered,
    finished: Sequence[Trial] = (),
    other: Trial | None = None,
) -> tuple[Trial, Children]:
    children = Children(answer)
    own = Evaluation(study, tmp_path, children, lambda: finished)  # type: ignore[arg-type]
    return own.proposal(draft(study, load(study.space), 0, ()), other, "here:1"), children


def test_all_rungs(tmp_path: Path) -> None:
    trial, children = evaluated(made.study(rungs=TWO), tmp_path)
    assert children.kinds == [STATIC, (CLIMB, 1), (CLIMB, 2)]
    assert {seed for job in children.jobs for seed in job.seeds} == {made.study().seed_of(trial.essence)}
    assert [(r.rung, r.quality, r.rates) for r in trial.results] == [
        (0, (-4.1,), (0.0,)),
        (1, (0.1, 0.2, 0.3), (1e-3, 2e-3, 4e-3)),
        (2, (0.1, 0.2, 0.3), (1e-3, 2e-3, 4e-3)),
    ]
    assert trial.results[1].folders == ("run0", "run1", "run2")
    assert trial.values == {**{name: float(cost) for name, cost in trial.price.as_dict().items()}, "quality": 0.3}
    assert (trial.state, trial.reason, trial.worker, trial.how) == (COMPLETE, "", "here:1", "seed")
    assert trial_from(trial.as_dict()) == trial


def test_not_promoted(tmp_path: Path) -> None:
    better = [made.trial(slot, quality=(0.9, 0.9), rung=2, macs=1) for slot in (2, 4)]
    trial, children = evaluated(made.study(rungs=TWO), tmp_path, finished=better)
    assert children.kinds == [STATIC, (CLIMB, 1)]
    assert (trial.state, trial.rung, trial.quality) == (COMPLETE, 1, 0.3)


@pytest.mark.parametrize("state", [FAILED, MEMORY, LATE, DIVERGED])
@pytest.mark.parametrize("place", [STATIC, CLIMB])
def test_a_job_that_fails(tmp_path: Path, state: str, place: str) -> None:
    def answer(job: Job) -> Any:
        return JobOutcome(state, reason="Why.") if job.kind == place else answered(job)

    trial, _ = evaluated(made.study(rungs=TWO), tmp_path, answer)
    assert (trial.state, trial.reason) == (state, "Why.")
    assert [result.rung for result in trial.results] == ([] if place == STATIC else [0])
    assert "quality" not in (trial.values or {})


def test_learning_rates_that_are_not_finite(tmp_path: Path) -> None:
    def answer(job: Job) -> Any:
        return [(None, "run")] * 3 if job.kind == CLIMB and job.rung == 2 else answered(job)

    trial, _ = evaluated(made.study(rungs=TWO), tmp_path, answer)
    assert trial.state == DIVERGED
    assert trial.reason == "loss or gradient are not finite on 'copy' with every learning rate."
    assert (trial.rung, trial.quality) == (1, 0.3)


def test_latency(tmp_path: Path) -> None:
    study = made.study(objectives=("quality", "latency"))
    trial, children = evaluated(study, tmp_path)
    assert children.kinds == [LATENCY, STATIC, (CLIMB, 1)]
    assert trial.values is not None
    assert (trial.values["latency"], trial.values["quality"]) == (0.002, 0.2)


def test_bounds(tmp_path: Path) -> None:
    slow, children = evaluated(made.study(bounds={"latency": {"most": 0.001}}), tmp_path)
    assert (slow.state, slow.reason) == (BOUND, "latency at most 0.001, not 0.002.")
    assert children.kinds == [LATENCY]
    poor, _ = evaluated(made.study(bounds={"quality": {"least": 0.5}}), tmp_path)
    assert (poor.state, poor.reason, poor.quality) == (BOUND, "quality at least 0.5, not 0.2.", 0.2)


def test_results_of_the_other_arm(tmp_path: Path) -> None:
    """What it has measured is not measured again; whether to go on is for each arm to say."""
    study = made.study(rungs=TWO)
    other = made.trial(1, quality=0.7, rung=1, design="its own text")
    trial, children = evaluated(study, tmp_path, other=other)
    assert children.kinds == [(CLIMB, 2)]
    assert children.jobs[0].design == "its own text"
    assert trial.results[:2] == other.results
    assert (trial.same_as, trial.rung, trial.quality) == (1, 2, 0.3)
    far = made.trial(1, quality=(0.1, 0.9), rung=2)
    better = [made.trial(slot, quality=(0.9, 0.9), rung=2, macs=1) for slot in (2, 4)]
    stays, children = evaluated(study, tmp_path, finished=better, other=far)
    assert (children.kinds, stays.rung, stays.quality) == ([], 1, 0.1)


def test_failures_of_the_other_arm(tmp_path: Path) -> None:
    other = made.trial(1, quality=0.7, rung=1, state=MEMORY, reason="Too large.")
    trial, children = evaluated(made.study(rungs=TWO), tmp_path, other=other)
    assert (trial.state, trial.reason, trial.results, trial.same_as) == (MEMORY, "Too large.", other.results, 1)
    assert children.kinds == []


def test_a_confirmation(tmp_path: Path) -> None:
    study = made.study(rungs=TWO)
    result = RungResult(2, (0.4, 0.6, 0.5), (1e-3, 2e-3, 4e-3), 1.0, ("a", "b", "c"))
    of = made.trial(3, quality=(0.1, 0.6), rung=2, same_as=2)
    of = Trial(**{**vars(of), "results": (*of.results[:2], result)})
    trained = made.trial(2, design="its own text")
    children = Children(answered)
    own = Evaluation(study, tmp_path, children, lambda: (trained, of))  # type: ignore[arg-type]
    trial = own.confirmation(Confirmation(-16, of, 1000))
    (job,) = children.jobs
    assert (job.kind, job.rung, job.rates, job.seeds, job.design) == (CLIMB, 2, (2e-3,), (1000,), "its own text")
    assert (trial.slot, trial.arm, trial.of, trial.fresh, trial.same_as) == (-16, "confirm", 3, 1000, None)
    assert (trial.quality, trial.values and trial.values["quality"], trial.essence) == (0.1, 0.1, of.essence)
    own.nursery = Children(lambda job: JobOutcome(LATE, reason="Late."))  # type: ignore[assignment]
    late = own.confirmation(Confirmation(-16, of, 1000))
    assert (late.state, late.reason, late.results, late.quality) == (LATE, "Late.", (), None)


def test_functions_have_no_static_rung(tmp_path: Path) -> None:
    study = made.study(rungs=(Rung(task="some:function"),))
    _, children = evaluated(study, tmp_path)
    assert children.kinds == [(CLIMB, 1)]


HOPES = [
    (FAILED, "The lights went out.", "The lights went out; fix the cause, which 'logs' in --out shows whole"),
    (MEMORY, "Too large.", "Too large; raise 'gibibytes', or use a space of smaller designs"),
    (LATE, "Late.", "Late; raise 'seconds', or train for fewer steps"),
    (DIVERGED, "Not finite.", "Not finite; set lower learning rates"),
    (BOUND, "latency at most 1, not 2.", "latency at most 1, not 2; widen the bound"),
]


@pytest.mark.parametrize(("state", "reason", "words"), HOPES)
def test_all_fail(state: str, reason: str, words: str) -> None:
    failed = [made.trial(slot, state=state, reason=reason) for slot in range(7)]
    odd = made.trial(7, state=FAILED, reason="Another reason.")
    study = made.study(trials=20)
    check_hope(study, failed)
    check_hope(study, [*failed, made.trial(7)])
    check_hope(made.study(trials=1), [made.trial(0), failed[1]])
    assert refusal(check_hope, study, [*failed, odd]) == (
        f"all 8 trials failed, 7 with this reason: {words}, and restart with another --out."
    )
    with pytest.raises(InputError):
        check_hope(made.study(trials=1), failed[:2])


def test_the_mean_of_the_rates_where_each_has_a_seed_of_its_own(tmp_path: Path) -> None:
    study = made.study(rungs=(Rung(task="mqar", score="mean"),))
    trial, children = evaluated(study, tmp_path)
    assert children.jobs[-1].seeds == tuple(study.seed_of(trial.essence, place) for place in range(3))
    assert len({*children.jobs[-1].seeds}) == 3
    assert (trial.results[-1].counts, trial.results[-1].rate) == (pytest.approx(0.2), 4e-3)
    assert trial.quality == trial.results[-1].counts == (trial.values or {})["quality"]
    part = RungResult(1, (None, 0.5, 0.25), (1e-3, 2e-3, 4e-3), 1.0, score="mean")
    assert (part.counts, part.rate) == (0.375, 2e-3)
    assert (RungResult(1, (None,), (1e-3,), 1.0).counts, RungResult(1, (None,), (1e-3,), 1.0, score="mean").rate) == (
        None,
        None,
    )


def test_every_design_has_a_seed_of_its_own_and_none_has_a_fresh_one() -> None:
    """Kin that is trained with one seed shares its luck, and would pass for a good family."""
    study = made.study(seed=7)
    seeds = [study.seed_of(f"{number:064x}") for number in range(3000)]
    assert [study.seed_of(f"{12_034_567:064x}", place) for place in range(4)] == [574, 41, 19, 7]
    assert seeds == [made.study(seed=7, trials=99).seed_of(f"{number:064x}") for number in range(3000)]
    assert len({*seeds}) == 1000
    assert not {*seeds} & {study.fresh_seed(place) for place in range(50)}
    assert max(made.study(seed=2**63 - 1).seed_of(f"{number:064x}") for number in range(3000)) < 2**63
