"""The runs behind docs/results.md: for each design a learning rate out of three on seed 0, then seeds 1 to 3 with it.

python docs/results/runs.py mqar --jobs 2 --out runs      starts what is not done, and goes on with what was ended
python docs/results/runs.py mqar --record --out runs      adds what is done to docs/results/mqar.json: it stays done
python docs/results/runs.py mqar --table                  prints the table of what is done
python docs/results/runs.py fish --analyses --out runs    analyses what is recorded, adds it to the file, and prints it
python docs/results/runs.py fish --table --analyses       prints it alone
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import tensornet_attn as ta
from tensornet_attn.analyse.maps import analysed as has_maps
from tensornet_attn.compare.section import mean_of
from tensornet_attn.cost import cost, device_named, lengths_of, sizes_at
from tensornet_attn.cost.order import split_best
from tensornet_attn.graph import build
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.train.trained import open_run

HERE = Path(__file__).parent
SEEDS = (1, 2, 3)
WIDTH = 64
READINGS = "docs/reproduce/readings"  # from the root of the repository, as in the commands


@dataclass(frozen=True)
class Entry:
    """A design in a comparison: `grow` is the leg whose size makes its parameters equal to the baseline's.

    Without it the legs are those of the paper's protocol, whatever the parameters.
    """

    design: str
    legs: dict[str, int] = field(default_factory=dict)
    settings: dict[str, int] = field(default_factory=dict)
    grow: str = "d"
    also: tuple[str, ...] = ()  # legs as large as `grow`
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.design


@dataclass(frozen=True)
class Comparison:
    """`score`: what the last validation is judged by; the largest is best, but of losses and bits the least.

    `length`: tokens of a sample, for the count of multiply-adds.
    """

    name: str
    task: str
    options: str
    length: int
    steps: int
    rates: tuple[float, ...]
    like: Entry
    entries: tuple[Entry, ...]
    more: tuple[str, ...] = ()
    score: str = "eval_accuracy"

    def best(self, values: Iterable[float]) -> float:
        return max(values) if self.score == "eval_accuracy" else min(values)


def _designs(heads: int, near: int) -> tuple[Entry, ...]:
    """The designs of the papers beside softmax attention of `heads` heads; `near` keys on either side in a band."""
    half = max(1, heads // 2)
    wide, narrow = {"k": 31}, {"k": 2 * near + 1}
    return (
        Entry("mhsa", {"h": heads}),
        Entry("thsa", grow="r", also=("s",)),  # all matrices shrink together
        Entry("skip_left", {"h": heads, "d": WIDTH // heads, "e": WIDTH // heads, "c": 1}, grow=""),
        Entry("hard_fish", {"g": 2, "h": 4}),
        Entry("gfish", {"g": 2, "k": 4, "h": 4}),
        Entry("mgk", {"h": half, "r": 2}),
        Entry("smgk", {"h": half, "r": 2}),
        Entry("mlk", {"h": half, "r": 2}),
        Entry("linear", {"h": heads}),
        Entry("band", {"h": heads}, wide, label="band_15"),
        Entry("band", {"h": heads}, narrow, label=f"band_{near}"),
        Entry("fmm1", {"h": heads}, narrow),
        Entry("fmm2", {"h": heads}, narrow),
        Entry("fmm1_rows", {"h": heads}, narrow),
        Entry("fmm2_rows", {"h": heads}, narrow),
        Entry("fmm3_shifted", {"h": heads}, narrow),
        Entry("fmm_fast_weight1", {"h": heads}, {"k": near + 1}, "d", ("e",)),
        Entry("fast_weight1", {"h": heads}, {}, "d", ("e",)),
        Entry("fast_weight2", {"h": heads}, {}, "d", ("e",)),
        Entry("hard_lfish", {"g": half, "h": heads}, {}, "d", ("e",)),
        Entry("hard_glfish", {"g": half, "h": heads, "k": heads}, {}, "d", ("e",)),
        Entry("linear2", {"h": heads}),
        Entry("linear3_shifted", {"h": heads}),
        Entry("mhsa_poly", {"h": heads}),
        Entry("epa", {"h": half, "e": 2}, {"k": 1}),
    )


def _fish() -> tuple[Entry, ...]:
    """FiSHformer's tables 1, 10 and 11: eight local heads, as wide as those of softmax attention."""
    kept = {"h": 8, "d": WIDTH // 8}
    return (
        Entry("mhsa", {"h": 8}, grow="", label="mhsa_8"),
        Entry("mhsa", {"h": 4, "d": WIDTH // 8}, grow="", label="mhsa_4"),
        *(Entry(name, {**kept, "g": 2}, grow="", label=f"{name}_2") for name in ("hard_fish", "fish", "mish")),
        *(Entry("gfish", {**kept, "g": g, "k": 8}, grow="", label=f"gfish_{g}") for g in (2, 4, 6)),
        Entry("hard_gfish", {**kept, "g": 2, "k": 8}, grow="", label="hard_gfish_2"),
        Entry("gfish_release", {**kept, "g": 2, "k": 8}, grow="", label="gfish_release_2"),
        Entry(f"{READINGS}/gfish_lm_release.yaml", {**kept, "g": 2, "k": 8}, grow="", label="gfish_lm_release_2"),
        Entry("linear", {"h": 8}, grow="", label="linear_8"),
        Entry("hard_lfish", {**kept, "g": 2, "e": 8}, grow="", label="hard_lfish_2"),
    )


def _mgk() -> tuple[Entry, ...]:
    """Transformer-MGK's tables 4 and 5: one head, two keys each, beside softmax attention of one and two heads."""
    return (
        Entry("mhsa", {"h": 1}, grow="", label="mhsa_1"),
        Entry("mhsa", {"h": 2}, grow="", label="mhsa_2"),
        Entry("gaussian", {"h": 1}, grow=""),
        *(Entry(name, {"h": 1, "r": 2}, grow="") for name in ("softmax_mgk", "softmax_smgk", "mgk", "smgk")),
        *(Entry(name, {"h": 1, "r": 2}, grow="") for name in ("mgk_em", "smgk_em", "mgk_hard", "smgk_hard")),
    )


def _epa() -> tuple[Entry, ...]:
    """Expert Projection Attention's tables 1 and 2: which projections have experts, and MoA, at equal parameters."""
    letters = ("v", "k", "q", "o", "vk", "vq", "kq", "ko", "qo", "vkq", "vko", "vqo", "kqo", "vkqo")
    return (
        Entry("mhsa", {"h": 8}, label="mhsa_8"),
        Entry("mhsa", {"h": 2}, label="mhsa_2"),
        *(Entry(name, {"h": 2, "e": 4}, {"k": 2}) for name in ("epa", *(f"epa_{chosen}" for chosen in letters))),
        *(Entry("moa", {"e": 8}, {"k": k}, label=f"moa_{k}") for k in (2, 4)),
        *(Entry("moa_sigmoid", {"e": 8}, {"k": k}, label=f"moa_sigmoid_{k}") for k in (2, 4)),
    )


TEXT = "path=stdlib.txt,length=128"  # python docs/results/texts.py stdlib -o stdlib.txt
BITS = "eval_bits_per_character"
COMPARISONS = {
    "mqar": Comparison(
        "mqar", "mqar", "", 64, 1500, (2e-3, 4e-3, 8e-3), Entry("mhsa", {"h": 2}), _designs(2, 4), ("--mlp", "none")
    ),
    "listops": Comparison(
        "listops",
        "listops_mini",
        "",
        32,
        3000,
        (1e-3, 2e-3, 4e-3),
        Entry("mhsa", {"h": 8}),
        (
            Entry("mhsa", {"h": 8}, label="mhsa_8"),
            Entry("mhsa", {"h": 2}, label="mhsa_2"),
            Entry("epa", {"h": 2, "e": 4}, {"k": 2}),
        ),
    ),
    "copy": Comparison(
        "copy", "copy", "", 128, 1000, (1e-3, 2e-3, 4e-3), Entry("mhsa", {"h": 4}), _designs(4, 10), ("--batch", "32")
    ),
    "fish": Comparison(
        "fish",
        "char_lm",
        TEXT,
        128,
        500,
        (4e-3, 8e-3, 1.6e-2),
        Entry("mhsa", {"h": 8}),
        _fish(),
        ("--batch", "16"),
        BITS,
    ),
    "mgk": Comparison(
        "mgk", "copy", "", 128, 1000, (1e-3, 2e-3, 4e-3), Entry("mhsa", {"h": 1}), _mgk(), ("--batch", "32")
    ),
    "epa": Comparison(
        "epa", "char_lm", TEXT, 128, 500, (4e-3, 8e-3, 1.6e-2), Entry("mhsa", {"h": 8}), _epa(), ("--batch", "16"), BITS
    ),
}


def legs_of(entry: Entry, like: Entry) -> dict[str, int]:
    """The legs with which the design has the parameters of the baseline, or just fewer; those given if none grows."""
    if not entry.grow:
        return entry.legs
    fixed = {"f": WIDTH, **entry.legs}
    target = ta.load(like.design, legs={"f": WIDTH, **like.legs})
    tied = dict.fromkeys(entry.also, entry.grow)
    source = ta.load(entry.design, legs={**fixed, **tied}, settings=entry.settings)
    size = ta.match_parameters(source, target, leg=entry.grow, multiple=1)
    return {**entry.legs, entry.grow: size, **dict.fromkeys(entry.also, size)}


def attention_macs(comparison: Comparison, entry: Entry) -> int:
    """Multiply-adds of one attention layer for a token, forward: the fewest of the plan and of all orders of products.

    Of experts, only the chosen ones count, as in the papers.
    """
    design = ta.load(entry.design, legs={"f": WIDTH, **legs_of(entry, comparison.like)}, settings=entry.settings)
    graph = build(design, None)
    lengths = lengths_of(graph, comparison.length, comparison.length)
    ordered, _ = split_best(graph, sizes_at(graph, lengths), device_named("flops"))
    planned = ta.cost(design, comparison.length).best
    return min(each.total.routed_macs for each in (planned, cost(ordered, lengths))) // comparison.length


def command(comparison: Comparison, entry: Entry, rate: float, seed: int, out: Path) -> list[str]:
    """What trains one run, as a user would type it."""
    pairs = legs_of(entry, comparison.like)
    words = ["tensornet-attn", "train", "--task", comparison.task, "--design", entry.design]
    words += ["--legs", ",".join(f"{leg}={size}" for leg, size in pairs.items())]
    if entry.settings:
        words += ["--set", ",".join(f"{name}={value}" for name, value in entry.settings.items())]
    words += [*comparison.more, "--steps", str(comparison.steps), "--lr", f"{rate:g}", "--seed", str(seed)]
    if comparison.options:
        words += ["--options", comparison.options]
    return [*words, "--threads", "1", "--no-tensorboard", "--out", str(out)]


def folder(base: Path, comparison: Comparison, entry: Entry, rate: float, seed: int) -> Path:
    return base / comparison.name / f"{entry.name}-lr{rate:g}-seed{seed}"


KEPT = ("parameters", "macs_per_token", "peak_memory_bytes", "tokens_per_second", "seconds", "command", "versions")


def facts(path: Path) -> dict[str, Any] | None:
    """What is known of a finished run, recorded or in its folder; None where it is not finished."""
    recorded = HERE / f"{path.parent.name}.json"
    known = json.loads(recorded.read_text()) if recorded.exists() else {}
    return known.get(path.name) or finished(path)


def finished(path: Path) -> dict[str, Any] | None:
    try:
        told = json.loads((path / "summary.json").read_text())
    except FileNotFoundError:
        return None
    return {**told["eval"], **{name: told[name] for name in KEPT}}


def score(comparison: Comparison, path: Path) -> float | None:
    """The score of the last validation of a finished run; None where it is not finished."""
    found = facts(path)
    return None if found is None else found[comparison.score]


def record(base: Path, name: str) -> None:
    """Adds the finished runs of a comparison to its JSON file."""
    file = HERE / f"{name}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    found = {path.parent.name: finished(path.parent) for path in sorted((base / name).glob("*/summary.json"))}
    for told in found.values():
        told["command"] = told["command"].replace(f"{base}/", "runs/")
    file.write_text(json.dumps({**found, **known}, indent=1, sort_keys=True) + "\n")


SAMPLES, BAND = 40, 5  # sequences of validation that a trained model looks at; diagonals left out of a map


def analysed(path: Path) -> dict[str, float]:
    """Of a trained model, means over layers: what an analysis finds in its maps and cores, and its largest priors."""
    model = open_run(path).model
    designs = [module for module in model.modules() if isinstance(module, CompiledDesign)]
    if not any(has_maps(module.plan.graph) for module in designs):
        return {}
    sections = ta.report_data(ta.run_sections(path, samples=SAMPLES), path.name, BAND)["sections"]
    boxes = [box for section in sections for box in section["boxes"] if not box["blend"]]
    weights = [named for section in sections for named in section["weights"].items()]
    figures = {
        "effective_heads": [box["effective_heads"] for box in boxes if isinstance(box["effective_heads"], float)],
        "distance": [box["distances"]["mean"] for box in boxes],
        "variance": [box["distances"]["variance"] for box in boxes],
        "components": [box["principal_components"]["maps"] for box in boxes],
        "rank": [mean(box["rank"]["0"]) for box in boxes],
        "rank_without_band": [mean(box["rank"][str(BAND)]) for box in boxes],
        "prior": [mean(map(max, values)) for name, values in weights if name.startswith("prior of ")],
    }
    return {name: mean(values) for name, values in figures.items() if values}


def analyse(base: Path, comparison: Comparison) -> None:
    """Adds the analyses of the models whose scores count, where their folders are there."""
    file = HERE / f"{comparison.name}.json"
    known = json.loads(file.read_text())
    for entry in comparison.entries:
        rate = chosen(base, comparison, entry)
        for seed in SEEDS if rate is not None else ():
            path = folder(base, comparison, entry, rate, seed)
            if path.name in known and (path / "summary.json").exists():
                known[path.name]["analysis"] = analysed(path)
    file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


COLUMNS = {
    "effective heads": ("effective_heads", ".2f"),
    "head distance": ("distance", ".2f"),
    "variance": ("variance", ".2f"),
    "components": ("components", ".0f"),
    "rank": ("rank", ".1f"),
    f"rank without {BAND} diagonals": ("rank_without_band", ".1f"),
    "largest prior": ("prior", ".3f"),
}


def analyses(base: Path, comparison: Comparison) -> Iterator[str]:
    """The table of what was analysed, means over seeds; a column is there where a design has it."""
    found = {}
    for entry in comparison.entries:
        rate = chosen(base, comparison, entry)
        told = [facts(folder(base, comparison, entry, rate, seed)) for seed in SEEDS] if rate is not None else [None]
        if all(one and one.get("analysis") for one in told):
            found[entry.name] = [one["analysis"] for one in told]
    names = {name: form for name, form in COLUMNS.items() if any(form[0] in each[0] for each in found.values())}
    yield f"| design | {' | '.join(names)} |"
    yield f"|{' --- |' * (1 + len(names))}"
    for design, each in found.items():
        cells = (f"{mean(one[key] for one in each):{form}}" if key in each[0] else "" for key, form in names.values())
        yield f"| {design} | {' | '.join(cells)} |"


def chosen(base: Path, comparison: Comparison, entry: Entry) -> float | None:
    """The learning rate of a design, once all three are done: the least of those within 0.01 of the best on seed 0."""
    found = {rate: score(comparison, folder(base, comparison, entry, rate, 0)) for rate in comparison.rates}
    known = {rate: value for rate, value in found.items() if value is not None}
    if len(known) < len(found):
        return None
    best = comparison.best(known.values())
    return min(rate for rate, value in known.items() if abs(value - best) <= 0.01 + 1e-9)


def run(base: Path, comparison: Comparison, entry: Entry, rate: float, seed: int) -> None:
    out = folder(base, comparison, entry, rate, seed)
    if score(comparison, out) is not None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    words = command(comparison, entry, rate, seed, out)
    print(" ".join(words), flush=True)
    with Path(f"{out}.log").open("a") as log:
        if subprocess.run(words, stdout=log, stderr=log).returncode:
            print(f"failed: see {out}.log", flush=True)


def design(base: Path, comparison: Comparison, entry: Entry) -> None:
    """All runs of one design, one after the other."""
    for rate in comparison.rates:
        run(base, comparison, entry, rate, 0)
    rate = chosen(base, comparison, entry)
    for seed in SEEDS if rate is not None else ():
        run(base, comparison, entry, rate, seed)


_NAMES = ("design", "legs", "parameters", "attention MACs a token", "learning rate", "seed 0, each rate")
HEAD = f"| {' | '.join((*_NAMES, 'seeds 1 to 3', 'mean ± 95 %'))} |"


def rows(base: Path, comparison: Comparison) -> Iterator[str]:
    """The table of the designs all of whose runs are done."""
    yield HEAD
    yield f"|{' --- |' * (HEAD.count('|') - 1)}"
    for entry in comparison.entries:
        rate = chosen(base, comparison, entry)
        if rate is None:
            continue
        values = [score(comparison, folder(base, comparison, entry, rate, seed)) for seed in SEEDS]
        if None in values:
            continue
        summary = facts(folder(base, comparison, entry, rate, 0))
        swept = ", ".join(
            f"{score(comparison, folder(base, comparison, entry, each, 0)):.3f}" for each in comparison.rates
        )
        legs = ", ".join(
            f"{name} {size}" for name, size in {**legs_of(entry, comparison.like), **entry.settings}.items()
        )
        score_of = mean_of(values)
        spread = f"{score_of.value:.3f} ± {score_of.half:.3f}"
        each = ", ".join(f"{value:.3f}" for value in values)
        yield (
            f"| {entry.name} | {legs} | {summary['parameters']:,} | {attention_macs(comparison, entry):,} | {rate:g} | "
            f"{swept} | {each} | {spread} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", choices=COMPARISONS)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="names of designs")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--analyses", action="store_true")
    given = parser.parse_args()
    comparison = COMPARISONS[given.comparison]
    if given.record:
        record(given.out, given.comparison)
    if given.table and not given.analyses:
        print("\n".join(rows(given.out, comparison)))
    if given.analyses:
        if not given.table:
            analyse(given.out, comparison)
        print("\n".join(analyses(given.out, comparison)))
    if given.table or given.record or given.analyses:
        return
    entries = [entry for entry in comparison.entries if not given.only or entry.name in given.only]
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda entry: design(given.out, comparison, entry), entries))


if __name__ == "__main__":
    sys.exit(main())
