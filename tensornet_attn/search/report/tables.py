"""The plain tables of the page: what each rung was, and which trials failed."""

from __future__ import annotations

from collections import Counter
from statistics import median

from tensornet_attn.analyse import html
from tensornet_attn.search.report import words
from tensornet_attn.search.report.findings import Findings
from tensornet_attn.search.study import Rung
from tensornet_attn.search.trial import Trial


def rungs(found: Findings) -> str:
    """What candidates were trained on, and how many of each arm came that far."""
    names = ["rung", "task", "run", "learning rates", "quality", "goes on", *found.study.arms, "median time"]
    rows = [_rung(found, place, rung) for place, rung in enumerate(found.study.rungs, 1)]
    note = "A rung trains a design with each learning rate, all at equal compute; its quality is that of the best one."
    return html.table(names, rows, note)


def _rung(found: Findings, place: int, rung: Rung) -> list[str]:
    own = [trial for trial in found.proposals if any(result.rung == place for result in trial.results)]
    times = [r.seconds for trial in own if trial.same_as is None for r in trial.results if r.rung == place]
    return [
        str(place),
        words.task(rung),
        ", ".join(f"{name} {value}" for name, value in rung.run.items()),
        ", ".join(f"{rate:g}" for rate in rung.rates),
        words.counts(rung),
        "" if place == len(found.study.rungs) else f"best {rung.keep:.0%}",
        *(str(sum(trial.arm == arm for trial in own)) for arm in found.study.arms),
        words.clock(median(times)) if times else "",
    ]


def failures(found: Findings) -> str:
    """What failed, and why; how many of each state first."""
    counts = Counter(trial.state for trial in found.failed)
    told = ", ".join(f"{state} {count}" for state, count in counts.most_common())
    rows = [[_name(trial), trial.arm, trial.state, trial.reason] for trial in found.failed]
    return html.table(["trial", "arm", "state", "reason"], rows, f"{told[0].upper()}{told[1:]}.")


def _name(trial: Trial) -> str:
    return str(trial.slot) if trial.of is None else f"{trial.of} with seed {trial.fresh}"
