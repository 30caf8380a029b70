"""Runs side by side: rows, intervals, verdicts, labels, what is unfinished, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn.compare.section import TaskSection, mean_of
from tests.compare.folders import folder, model, several
from tests.refusals import refusal


def section(paths: list[Path], by: str | None = None) -> TaskSection:
    (found,) = ta.compare(paths, by).sections
    return found


def test_runs_that_differ_in_their_seed_alone_are_one_row(tmp_path: Path) -> None:
    paths = several(tmp_path, "a", [0.7, 0.8, 0.9]) + several(tmp_path, "b", [0.3, 0.4, 0.35], lr=0.5)
    found = section(paths[::-1])
    assert [(row.label, row.seeds) for row in found.rows] == [
        ("mhsa (lr 0.002)", [0, 1, 2]),
        ("mhsa (lr 0.5)", [0, 1, 2]),
    ]
    assert found.rows[0].score.to_text() == "0.80 ± 0.25"
    assert found.verdict() == "mhsa (lr 0.002) is the best: its interval overlaps no other."
    assert found.rows[1].difference is not None
    assert found.rows[1].difference.values == pytest.approx([-0.4, -0.4, -0.55])
    assert found.rows[0].difference is None


def test_where_a_run_was_computed_makes_no_row(tmp_path: Path) -> None:
    paths = [folder(tmp_path / "a", threads=1), folder(tmp_path / "b", seed=1, save_every=5)]
    assert [row.seeds for row in section(paths).rows] == [[0, 1]]


def test_intervals_that_meet_are_a_tie(tmp_path: Path) -> None:
    paths = several(tmp_path, "a", [0.7, 0.8, 0.9]) + several(tmp_path, "b", [0.6, 0.7, 0.8], model=model("linear"))
    paths += several(tmp_path, "c", [0.1, 0.11, 0.12], model=model("band"))
    found = section(paths)
    assert [row.label for row in found.rows] == ["mhsa", "linear", "band"]
    assert found.best is None
    assert found.verdict() == "A tie: the interval of mhsa overlaps that of linear."
    assert found.as_dict()["tied"] == ["mhsa", "linear"]


def test_one_seed_gives_no_interval_and_no_best(tmp_path: Path) -> None:
    paths = [folder(tmp_path / "a", 0.9), folder(tmp_path / "b", 0.1, model=model("linear"))]
    found = section(paths)
    assert found.verdict() == "No best: a single seed has no interval (mhsa and linear)."
    assert [row.score.to_text() for row in found.rows] == ["0.9", "0.1"]
    assert section(paths[:1]).verdict() == ""


def test_seeds_that_only_one_row_has_are_no_pair(tmp_path: Path) -> None:
    paths = [folder(tmp_path / "a", 0.9, 0), folder(tmp_path / "b", 0.5, 1, model=model("linear"))]
    assert [row.difference for row in section(paths).rows] == [None, None]


def test_rows_are_sorted_by_what_is_asked_for(tmp_path: Path) -> None:
    paths = [folder(tmp_path / "a", 0.9, loss=2.0), folder(tmp_path / "b", 0.1, loss=1.0, model=model("linear"))]
    assert [row.label for row in section(paths).rows] == ["mhsa", "linear"]
    assert [row.label for row in section(paths, "eval_loss").rows] == ["linear", "mhsa"]
    assert refusal(section, paths, "eval_acuracy") == (
        f"'{paths[0]}' has no value of 'eval_acuracy' in its last validation; did you mean 'eval_accuracy'?"
    )


@pytest.mark.parametrize("measure", ["perplexity", "bits_per_character", "bits_per_dimension"])
def test_language_models_are_sorted_by_perplexity_or_bits(tmp_path: Path, measure: str) -> None:
    """Less is better; a run of a version that did not say them is compared by what it says."""
    key = f"eval_{measure}"
    paths = [folder(tmp_path / "a", 0.9, judged={key: 3.0})]
    paths += [folder(tmp_path / "b", 0.1, judged={key: 2.0}, model=model("linear"))]
    found = ta.compare(paths)
    assert [row.label for row in found.sections[0].rows] == ["linear", "mhsa"]
    assert found.to_text().splitlines()[1].strip().startswith(f"{measure.replace('_', ' ')}  accuracy  loss")
    (task,) = found.as_dict()["tasks"]
    assert (task["sorted_by"], task["rows"][0]["measures"][key]) == (key, {"mean": 2.0, "values": [2.0]})
    assert measure.replace("_", " ") in found.to_html()
    old = folder(tmp_path / "c", 0.5, 1, model=model("linear"))
    assert section([*paths, old]).measures == ["eval_accuracy", "eval_loss"]


def test_labels_tell_models_of_one_name_apart(tmp_path: Path) -> None:
    wide = model(layers=[{"mixer": {"design": "mhsa", "legs": {"h": 4}}, "repeat": 2}])
    found = section([folder(tmp_path / "a"), folder(tmp_path / "b", 0.4, model=wide)])
    assert [row.label for row in found.rows] == ["mhsa (h 2, d 4, layers 1)", "mhsa (h 4, d 2, layers 2)"]


def test_tasks_have_sections_with_the_options_that_differ(tmp_path: Path) -> None:
    paths = [
        folder(tmp_path / "a", options={"length": 32, "pairs": 4}),
        folder(tmp_path / "b", options={"length": 64, "pairs": 4}),
    ]
    paths += [folder(tmp_path / "c", task="copy")]
    assert [found.task for found in ta.compare(paths).sections] == ["mqar (length 32)", "mqar (length 64)", "copy"]


def test_runs_that_have_not_finished_stand_apart(tmp_path: Path) -> None:
    paths = [folder(tmp_path / "a"), folder(tmp_path / "b", None, 1)]
    with (paths[1] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    found = section(paths)
    assert [(label, record.last_step) for label, record in found.unfinished] == [("mhsa", 3)]
    text = ta.compare(paths).to_text()
    assert f"  unfinished: mhsa, seed 1, step 3 of 4: {paths[1]}" in text.splitlines()
    assert ta.compare(paths[1:]).to_text() == f"mqar\n  unfinished: mhsa, seed 1, step 3 of 4: {paths[1]}"


def test_the_table(tmp_path: Path) -> None:
    paths = several(tmp_path, "a", [0.7, 0.8, 0.9]) + several(tmp_path, "b", [0.2, 0.3, 0.4], model=model("linear"))
    assert (
        ta.compare(paths).to_text()
        == """\
mqar
             accuracy   loss  difference  seeds  MACs/token  parameters  peak memory  tokens/s
  mhsa    0.80 ± 0.25  1 ± 0                  3      81.9 k      70.0 k       400 MB    13.4 k
  linear  0.30 ± 0.25  1 ± 0    -0.5 ± 0      3      81.9 k      70.0 k       400 MB    13.4 k
  mhsa is the best: its interval overlaps no other.

mean ± half the 95 % interval (Student's t) over seeds; difference: to the first row, paired by seed; costs: medians"""
    )


def test_printed_scores(tmp_path: Path) -> None:
    """The first row counts whose folder, design and sizes are those of the run."""
    runs = [
        *several(tmp_path / "T1", "a", [0.7, 0.8]),
        folder(tmp_path / "T1" / "b", 0.4, model=model("linear")),
        folder(tmp_path / "T2" / "c", 0.3, model=model("band")),
    ]
    file = tmp_path / "printed.csv"
    rows = ["*/T3/*,mhsa,h=2,0.99,", "*/T1/*,mhsa,h=4,0.98,", "*/T1/*,mhsa,h=2,0.90,0.91", "*/T2/*,band,,,0.6"]
    header = "runs,design,sizes,validation,test"
    file.write_text("\n".join([header, *rows]))
    found = ta.compare(runs, printed=file)
    assert [row.printed for row in found.sections[0].rows] == ["0.90", "-", "-"]
    assert found.to_text().splitlines()[1].split()[:3] == ["accuracy", "loss", "printed"]
    assert found.as_dict()["tasks"][0]["rows"][0]["printed"] == "0.90"
    assert "printed" not in ta.compare(runs).to_text()
    file.write_text("test, note, validation, sizes, design, runs\n,,0.5, h=2,mhsa,T1/*\n", encoding="utf-8-sig")
    assert [row.printed for row in ta.compare(runs, printed=file).sections[0].rows] == ["0.5", "-", "-"]
    for text, column in ((b"", "runs"), (b"runs,validation\nT1,1\n", "design"), (b"\xff", "runs")):
        file.write_bytes(text)
        wanted = f"'{file}' has no column '{column}'; give a CSV file with the columns {header}."
        assert refusal(ta.compare, runs, printed=file) == wanted
    file.write_text(f"{header}\nT1/*,mhsa,,1,1\nT1/*,mhsa\n")
    wanted = f"'{file}', row 3: fewer cells than columns; leave cells empty between commas."
    assert refusal(ta.compare, runs, printed=file) == wanted
    assert "not finished" in ta.compare([folder(tmp_path / "U", None)]).to_html()


def test_data(tmp_path: Path) -> None:
    (task,) = json.loads(json.dumps(ta.compare(several(tmp_path, "a", [0.5, 0.7])).as_dict()))["tasks"]
    (row,) = task["rows"]
    assert (task["task"], task["sorted_by"], task["best"], task["tied"]) == ("mqar", "eval_accuracy", None, [])
    assert row["measures"]["eval_accuracy"]["values"] == [0.5, 0.7]
    assert row["measures"]["eval_accuracy"]["low"] == pytest.approx(0.6 - 12.7062 * 0.1, abs=1e-4)
    assert (row["designs"], row["seeds"], row["parameters"]) == (["mhsa"], [0, 1], 70016)


def test_a_cost_that_was_not_measured(tmp_path: Path) -> None:
    path = folder(tmp_path / "a")
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"tokens_per_second": None}))
    assert ta.compare([path]).to_text().splitlines()[2].endswith(" 400 MB         -")


def refused(*paths: Path) -> str:
    return refusal(ta.compare, paths)


def test_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    gave = "give folders that 'tensornet-attn train"
    assert refused() == f"there are no runs to compare: {gave} --out' has written."
    assert refused(tmp_path / "none") == f"'{tmp_path}/none' is not a folder; {gave} --out' has written."
    assert refused(tmp_path / "empty") == f"'{tmp_path}/empty' has no run.yaml; {gave} --out' has written."


def test_what_cannot_be_read(tmp_path: Path) -> None:
    run = folder(tmp_path / "a")
    metrics, summary = run / "metrics.jsonl", run / "summary.json"
    metrics.write_text('{"step": 1, "loss": 2}\n{"step"\n{"step": 3, "loss": 2}\n')
    assert refused(run) == f"'{metrics}', line 2: not a JSON object with a 'step'; remove the line."
    metrics.write_bytes(b"\xff\n")
    assert refused(run) == f"'{metrics}' is not UTF-8 text; restore the file."
    metrics.write_text("")
    summary.write_text('{"eval": {}}')
    assert refused(run) == f"'{summary}' is damaged: it has no 'macs_per_token'; remove it and finish the run."
    summary.write_text("{")
    assert refused(run) == f"'{summary}' is damaged: it has no 'eval'; remove it and finish the run."


def test_one_run_twice(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "a"), folder(tmp_path / "b")
    assert refused(one, other) == f"'{one}' and '{other}' are the same run, mhsa with seed 0; leave one out."
    assert len(section([one, one]).rows[0].seeds) == 1  # the same folder named twice


def test_the_interval() -> None:
    mean = mean_of([1.0, 2.0, 3.0, 4.0])
    assert (mean.value, mean.half) == (2.5, pytest.approx(3.18245 * (5 / 3) ** 0.5 / 2, abs=1e-4))
    assert mean.as_dict()["low"] == mean.low
    assert mean.apart(mean_of([9.0, 9.1, 9.2]))
    assert not mean.apart(mean_of([9.0]))
