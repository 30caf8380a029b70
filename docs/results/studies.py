"""The studies behind docs/search-results.md: records what each found, and prints the tables of that page.

tensornet-attn search --config docs/results/studies/recall.yaml --workers 2 --seed 0 --out runs/recall_0
python docs/results/studies.py recall --record runs/recall_0   adds what was found to docs/results/studies/recall.json
python docs/results/studies.py recall --table                  prints the table of what was recorded
python docs/results/studies.py recall --spread                 prints how far designs and seeds lie apart
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import correlation, mean, median, stdev, variance
from typing import Any

from tensornet_attn.compare.section import mean_of
from tensornet_attn.search.space import from_data, to_text

HERE = Path(__file__).parent / "studies"
HEADED = ("seed", "threads", "score")
KEPT = ("slot", "arm", "how", "same_as", "of", "fresh", "state", "reason", "seconds", "price")
HEAD = "| study | arm | designs | best confirmed | parameters | MACs | seen | five fresh seeds | others | core-hours |"


def record(name: str, folders: Sequence[Path]) -> None:
    """Adds finished studies, by the names of their folders, to the file of that name."""
    file = HERE / f"{name}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for folder in folders:
        told = json.loads((folder / "trials.json").read_text())
        seed, threads = told["study"].get("seed", 0), told["study"].get("threads", 1)
        trials = [_kept(trial) for trial in told["trials"]]
        score = told["study"]["rungs"][-1].get("score", "best")
        found[folder.resolve().name] = {"seed": seed, "threads": threads, "score": score, "trials": trials}
    text = ",\n".join(f"{json.dumps(name)}: {_lines(told)}" for name, told in sorted(found.items()))
    file.write_text(f"{{\n{text}\n}}\n")


def _lines(told: dict[str, Any]) -> str:
    """A study as JSON, a trial a line."""
    trials = ",\n".join(json.dumps(trial) for trial in told["trials"])
    return f'{{{json.dumps({key: told[key] for key in HEADED if key in told})[1:-1]}, "trials": [\n{trials}]}}'


def _kept(trial: dict[str, Any]) -> dict[str, Any]:
    results = [result["quality"] for result in trial["results"] if result["rung"] > 0]
    kept = {name: trial[name] for name in KEPT if trial.get(name) not in (None, "")}
    return {**kept, "essence": trial["essence"][:12], "path": to_text(from_data(trial["path"])), "quality": results}


def score_of(trial: dict[str, Any], score: str = "best") -> float:
    """The best over learning rates on the last rung it was on, or their mean."""
    known = [float(value) for value in trial["quality"][-1] if value is not None]
    return max(known) if score == "best" else mean(known)


def rows(name: str) -> Iterator[str]:
    yield HEAD
    yield "|" + " --- |" * (HEAD.count("|") - 1)
    for study, told in json.loads((HERE / f"{name}.json").read_text()).items():
        for arm in ("evolution", "random"):
            own = [trial for trial in told["trials"] if trial["arm"] == arm]
            if own:
                yield f"| {study} | {arm} | {_row(own, told)} |"


def _row(own: Sequence[dict[str, Any]], told: dict[str, Any]) -> str:
    """Of an arm: its designs, of those that were confirmed the one with the best mean, the other means, its hours.

    A design of both arms counts for both.
    """
    designs = {trial["essence"] for trial in own}
    again = [trial for trial in told["trials"] if trial["arm"] == "confirm" and trial["essence"] in designs]
    fresh: dict[str, list[float]] = {}
    for trial in again:
        fresh.setdefault(trial["essence"], []).append(score_of(trial))
    best, *others = sorted(fresh, key=lambda essence: -mean(fresh[essence]))
    first = next(trial for trial in own if trial["essence"] == best)
    seconds = sum(trial["seconds"] for trial in (*own, *again) if "same_as" not in trial) * told["threads"]
    means = ", ".join(f"{mean(fresh[essence]):.3f}" for essence in others)
    price = (f"{first['price'][cost]:,}" for cost in ("parameters", "macs"))
    seen = f"{score_of(first, told.get('score', 'best')):.3f}"
    cells = (len(own), first["path"], *price, seen, mean_of(fresh[best]).to_text(), means)
    return " | ".join([*map(str, cells), f"{seconds / 3600:.2f}"])


def spreads(name: str) -> Iterator[str]:
    """Of each study and arm the median score and the deviation of scores; of all confirmed designs that of seeds, the
    root of the mean variance, and how the search's scores rank them beside the means of fresh seeds.
    """
    variances: list[float] = []
    pairs: list[tuple[float, float, float]] = []  # the best of the learning rates, their mean, the mean of fresh seeds
    for study, told in json.loads((HERE / f"{name}.json").read_text()).items():
        fresh: dict[str, list[float]] = {}
        scores: dict[str, list[float]] = {}
        rates: dict[str, list[float]] = {}
        for trial in (trial for trial in told["trials"] if trial["quality"]):
            arm = trial["arm"]
            known, key = (fresh, trial["essence"]) if arm == "confirm" else (scores, arm)
            known.setdefault(key, []).append(score_of(trial, told.get("score", "best")))
            if arm != "confirm":
                rates[trial["essence"]] = [float(value) for value in trial["quality"][-1] if value is not None]
        medians = ", ".join(f"{arm} {median(found):.3f}" for arm, found in sorted(scores.items()))
        whole = [score for found in scores.values() for score in found]
        yield f"{study}: median {medians}; deviation of designs {stdev(whole):.3f}"
        variances += map(variance, fresh.values())
        pairs += [(max(rates[essence]), mean(rates[essence]), mean(found)) for essence, found in fresh.items()]
    yield f"deviation of seeds, {len(variances)} designs: {mean(variances) ** 0.5:.3f}"
    best, means, confirmed = (_ranks(values) for values in zip(*pairs, strict=True))
    by_best, by_mean = (correlation(own, confirmed) for own in (best, means))
    told = f"{by_best:.2f} by the best rate, {by_mean:.2f} by the mean"
    yield f"ranks in the search and with fresh seeds correlate: {told}"


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each in order; equal ones share theirs."""
    return [sum(one < own for one in values) + sum(one == own for one in values) / 2 for own in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--record", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--spread", action="store_true")
    given = parser.parse_args()
    if given.record:
        record(given.name, given.record)
    if given.table:
        print("\n".join(rows(given.name)))
    if given.spread:
        print("\n".join(spreads(given.name)))


if __name__ == "__main__":
    main()
