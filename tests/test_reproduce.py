"""docs/reproduce.md is complete and true: every table and figure has a row, every command names what exists.

Nothing is trained. Commands are parsed by the parsers of the command line, run files and models read as `train` does.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer

import tensornet_attn as ta
from tensornet_attn import compiler
from tensornet_attn.cli.app import app
from tensornet_attn.cli.options import overrides
from tensornet_attn.compare.printed import printed_score, read_printed
from tensornet_attn.compare.record import designs_by_name
from tensornet_attn.cost.paper import TABLES
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.tasks import list_tasks, task_named
from tensornet_attn.train.config import Run, read, spec_of
from tests.paper_tables import compared
from tests.reproduce_page import NUMBERS, PAGE, ROOT, STATES, Call, Row, anchors, calls, numbers, rows, section, table
from tests.scripts import script

PAPERS = list(NUMBERS)
ROWS = [row for paper in PAPERS for row in rows(paper)]
DESIGNS, MODELS = {*ta.list_designs()}, {*ta.models.list_models()}
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
RECIPES = {recipe.name: recipe for recipe in list_tasks("*")}

# Kind, vocabulary, classes and features of tasks whose data are not there, by task or folder; a vocabulary of None is
# that of the task's options.
FACTS: dict[str, tuple[str, int | None, int | None, int | None]] = {
    "wikitext": ("language_model", None, None, None),
    "data/wikitext-103": ("language_model", 267_735, None, None),
    "data/ptb": ("language_model", 10_000, None, None),
    "stdlib.txt": ("language_model", 96, None, None),
    "byte_lm": ("language_model", 257, None, None),
    "image_generation": ("language_model", 257, None, None),
    "translation": ("sequence_to_sequence", None, None, None),
    "uea": ("classification", 0, 9, 12),
    "lra_listops": ("classification", 16, 10, None),
    "lra_text": ("classification", 257, 2, None),
    "lra_retrieval": ("classification", 258, 2, None),
    "lra_image": ("classification", 256, 10, None),
    "lra_pathfinder": ("classification", 256, 2, None),
}
PIXELS = {"mnist": 784, "cifar10": 3072, "lra_image": 1024, "lra_pathfinder": 1024}
LONGEST = 29  # of JapaneseVowels


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands of all papers were expanded, once."""
    made = tmp_path_factory.mktemp("reproduce")
    for paper in PAPERS:
        calls(paper, made)
    return made


# --- the page ------------------------------------------------------------------------------------------------------


def test_rows_have_ids_of_their_own_and_a_state_out_of_four() -> None:
    assert [row.id for row in ROWS if not re.fullmatch(r"[TFMNE]\d+", row.id)] == []
    assert [name for name, count in Counter(row.id for row in ROWS).items() if count > 1] == []
    assert [row.id for row in ROWS if row.state not in STATES] == []
    for paper in PAPERS:
        ids = [row.id for row in rows(paper)]
        assert ids == [f"{ids[0][0]}{place}" for place in range(1, len(ids) + 1)]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_of_a_paper_is_on_the_page(paper: str) -> None:
    left_out = re.findall(r"^No row, since .*$", section(paper), re.MULTILINE)
    text = "\n".join([row.paper for row in rows(paper)] + left_out)
    for kind, count in NUMBERS[paper].items():
        assert numbers(text, kind) == {*range(1, count + 1)}


def test_the_counts_are_those_of_the_rows() -> None:
    wanted = []
    for paper in PAPERS:
        states = Counter(row.state for row in rows(paper))
        counts = [*NUMBERS[paper].values(), len(rows(paper)), *(states[state] for state in STATES)]
        wanted.append([paper, *map(str, counts)])
    assert table(PAGE.read_text(), "paper") == wanted


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_what_is_reproduced_or_contradicted_has_evidence(row: Row) -> None:
    links = re.findall(r"\]\(([^)]+)\)", row.evidence)
    assert bool(links) == (row.state in ("reproduced", "contradicted"))


def test_links_lead_to_headings_that_there_are() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", PAGE.read_text()):
        path, _, anchor = link.partition("#")
        page = (PAGE.parent / path).resolve() if path else PAGE
        assert page.exists(), link
        assert not anchor or anchor in anchors(page), link


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_designs_and_models_of_a_row_are_shipped(row: Row) -> None:
    known = DESIGNS | MODELS | {"bert-large-uncased"}
    assert {*re.findall(r"`([^`]+)`", row.ours)} <= known
    assert {*re.findall(r"\b[TFMNE]\d+\b", row.ours)} <= {other.id for other in ROWS}


def test_every_row_has_a_command_but_those_that_are_not_supported(folder: Path) -> None:
    called = {call.row for paper in PAPERS for call in calls(paper, folder)}
    assert called == {row.id for row in ROWS if row.ours != "–"}
    assert {row.state for row in ROWS if row.ours == "–"} == {"not done"}


def test_every_run_file_is_used(folder: Path) -> None:
    text = PAGE.read_text()
    for task in ("listops", "text", "retrieval", "image", "pathfinder"):
        text = text.replace("lra_$task", f"lra_$task lra_{task}", 1) if task in text else text
    text = text.replace("$data.yaml", "mnist.yaml cifar10.yaml")
    text = text.replace("epa_${row%% *}_rope.yaml", "epa_45m_rope.yaml epa_243m_rope.yaml")
    for file in (PAGE.parent / "reproduce").glob("*.*"):
        assert file.name in text or file.stem in text, file.name


# --- the commands --------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[ModelSpec]:
    """The models that `train` would train: it reads them, checks them against their task, and stops."""
    found: list[ModelSpec] = []

    def stop(config: str | None, *, out: str, command: str, **chosen: Any) -> None:
        run = read(config, chosen)
        found.append(spec_of(run, facts(run)))

    monkeypatch.setattr(importlib.import_module("tensornet_attn.train.start"), "train", stop)
    return found


WITH_COMMANDS = [row.id for row in ROWS if row.ours != "–"]
FILES = sorted((PAGE.parent / "reproduce").glob("*.yaml"))
PRINTED = read_printed(PAGE.parent / "reproduce" / "printed.csv")


@pytest.mark.parametrize("row", WITH_COMMANDS)
def test_the_commands_of_a_row_name_what_there_is(row: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for call in calls_of(row, folder):
        check_python(call.words) if call.program == "python" else CHECKS[call.words[0]](parsed(call).params)


@pytest.mark.parametrize("row", WITH_COMMANDS)
def test_what_a_row_trains_fits_its_task(
    row: str, folder: Path, trained: list[ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    found = [call for call in calls_of(row, folder) if call.words[0] == "train"]
    for call in found:
        invoke(call)
    assert len(trained) == len(found)
    outs = [parsed(call).params["out"] for call in found]
    for line in PRINTED:
        if f"/{row}/" in line["runs"]:
            split = "test" if line["test"] else "validation"
            told = [
                printed_score([line], out, designs_by_name(spec), split)
                for out, spec in zip(outs, trained, strict=True)
            ]
            assert line[split] in told, f"{row} trains no {line}"


def test_printed_scores_are_those_of_the_page() -> None:
    words = set((PAGE.parent / "printed-scores.md").read_text().replace("%", " ").split())
    assert [line for line in PRINTED if not {line["validation"], line["test"]} - {""} <= words] == []
    assert {line["runs"].split("/")[1] for line in PRINTED} <= set(WITH_COMMANDS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_run_file_is_good(file: Path, trained: list[ModelSpec]) -> None:
    if "\nrun: 1\n" not in file.read_text():
        assert ta.check(str(file)) == []
        return
    invoke(Call("", "tensornet-attn", ("train", "--config", str(file), "--out", "run")))
    assert len(trained) == 1


def calls_of(row: str, folder: Path) -> list[Call]:
    found = [call for paper in PAPERS for call in calls(paper, folder) if call.row == row]
    assert found
    return found


def parsed(call: Call) -> Any:
    """The command with its options, as the command line has read them. Raises for options that there are not."""
    name, *words = call.words
    return COMMANDS[name].make_context(name, words)


def invoke(call: Call) -> None:
    context = parsed(call)
    context.command.invoke(context)


def facts(run: Run) -> Any:
    """What stands in for the opened task: its data are not there."""
    recipe = RECIPES[run.task]
    if recipe.drawn or (run.task == "char_lm" and "path" not in run.options):
        return task_named(run.task, **run.options)
    options = recipe.options(**run.options)
    kind, vocabulary, classes, features = FACTS.get(options.path) or FACTS[run.task]
    vocabulary = options.vocabulary if vocabulary is None else vocabulary
    length = PIXELS.get(getattr(options, "data", run.task)) or options.length or LONGEST
    return SimpleNamespace(
        name=run.task, kind=kind, vocabulary=vocabulary, classes=classes, features=features, length=length
    )


def check_train(given: dict[str, Any]) -> None:
    for path in (given["config"], given["design"]):
        assert path is None or path in DESIGNS or Path(path).is_file()
    assert given["model"] in {None} | MODELS


def check_run(given: dict[str, Any]) -> None:
    assert Path(given["run"]).is_dir(), f"no command trains {given['run']}"


def check_compare(given: dict[str, Any]) -> None:
    (runs,) = (value for value in given.values() if isinstance(value, (list, tuple)) and value)
    assert [run for run in runs if not Path(run).is_dir()] == []


def check_analyse(given: dict[str, Any]) -> None:
    assert Path(given["subject"]).is_dir(), f"no command trains {given['subject']}"


def check_names(given: dict[str, Any]) -> None:
    """Designs and models of cost, bench, draw, check, explain and lattice, with those of the legs that they have."""
    assert given.get("table") in (None, *TABLES)
    names = [name for key in ("files", "designs", "design", "name", "names") for name in several(given.get(key))]
    names += several(given.get("against")) if given.get("against") in DESIGNS else []
    names += several(given.get("beside"))
    assert names or given.get("table")
    legs, settings = (overrides(given.get(key), "") for key in ("legs", "settings"))
    over = {item.partition("=")[0] for item in several(given.get("over"))} - {"n", "m"}
    reached: set[str] = set()
    for name in names:
        if name in MODELS:
            ta.models.load(name)
            continue
        own = compiler.load(name)
        mine = {leg: size for leg, size in legs.items() if leg in own.legs}
        made = compiler.load(name, mine, {key: value for key, value in settings.items() if key in own.settings})
        reached |= {*made.legs, *made.settings}
    assert {*legs, *settings, *over} <= reached


def several(value: Any) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


CHECKS = {
    "train": check_train,
    "evaluate": check_run,
    "compare": check_compare,
    "analyse": check_analyse,
    **dict.fromkeys(("cost", "bench", "draw", "check", "explain", "lattice"), check_names),
}


def check_python(words: tuple[str, ...]) -> None:
    if words[:2] == ("-m", "pytest"):
        paths, chosen = (words[2:-2], words[-1]) if "-k" in words else (words[2:], "")
        assert all("\ndef test_" in (ROOT / path).read_text() for path in paths)
        assert all(name in DESIGNS for name in chosen.split(" or ") if chosen)
    elif words[0] == "-c":
        check_code(words[1])
    else:
        SCRIPTS[words[0]](script(words[0].removeprefix("docs/").removesuffix(".py")), words[1:])


def check_code(code: str) -> None:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, alias.name) for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ta":
            assert hasattr(ta, node.attr)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("runs/"):
            assert Path(node.value).is_dir(), f"no command trains {node.value}"


def check_runs(module: ModuleType, words: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("comparison", choices=module.COMPARISONS)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out")
    given = parser.parse_args(words)
    assert {*given.only} <= {entry.name for entry in module.COMPARISONS[given.comparison].entries}


def check_texts(module: ModuleType, words: tuple[str, ...]) -> None:
    assert words[0] in module.TEXTS
    assert words[1] == "-o"


def check_pairs(module: ModuleType, words: tuple[str, ...]) -> None:
    assert module.parser().parse_args(words).most > 0


def check_glue(module: ModuleType, words: tuple[str, ...]) -> None:
    given = module.parser().parse_args(words)
    assert given.design == "none" or ta.load(given.design)


SCRIPTS = {
    "docs/results/runs.py": check_runs,
    "docs/results/texts.py": check_texts,
    "docs/results/pairs.py": check_pairs,
    "docs/reproduce/glue.py": check_glue,
}


def test_the_models_of_table_1_have_the_parameters_that_the_cost_table_counts(
    folder: Path, trained: list[ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for call in calls_of("E4", folder):
        if call.words[0] == "train":
            invoke(call)
    counts = [number.ours for number in compared("epa").numbers if number.row.where == "table 1"]
    assert sorted(spec.cost().parameters for spec in trained) == sorted(counts)
