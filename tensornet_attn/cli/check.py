"""`check`: every file is read, every problem of each is told, and the exit code says whether all are good."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensornet_attn.cli.options import Json, Legs, Mixer, Settings, changes, overrides, source_of, standard_input
from tensornet_attn.errors import DesignError, Problem

if TYPE_CHECKING:
    from tensornet_attn.graph.model import Graph
    from tensornet_attn.models.read import ModelSpec
    from tensornet_attn.spec.places import Document
    from tensornet_attn.spec.report import Reporter

Numbers = dict[str, int | float | str]
Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="YAML files, shipped names, or - for stdin.")]


@dataclass(frozen=True)
class Finding:
    """What was found out about one file: the graph of a design or a model, neither where it has errors."""

    file: str
    problems: tuple[Problem, ...]
    graph: Graph | None
    model: ModelSpec | None = None

    @property
    def errors(self) -> int:
        return sum(problem.severity == "error" for problem in self.problems)

    def good(self, strict: bool) -> bool:
        return not (self.problems if strict else self.errors)

    def as_dict(self, strict: bool) -> dict[str, object]:
        facts: dict[str, object] = {"file": self.file, "ok": self.good(strict)}
        if self.graph is not None:
            facts |= {"name": self.graph.name, "steps": _steps(self.graph), "parameters": parameters(self.graph)}
        elif self.model is not None:
            layers = {stack: len(blocks) for stack, blocks in self.model.stacks.items()}
            facts |= {
                "name": self.model.name,
                "kind": self.model.kind,
                **layers,
                "parameters": self._model_parameters(),
            }
        return facts | {"problems": [problem.as_dict() for problem in self.problems]}

    def _model_parameters(self) -> int:
        assert self.model is not None
        cost = self.model.cost()
        return cost.parameters + cost.frozen

    def ok_line(self) -> str:
        if self.model is not None:
            layers = sum(len(blocks) for blocks in self.model.stacks.values())
            what = f"{self.model.kind}, {layers} layer{'s' * (layers != 1)}, {self._model_parameters():,} parameters"
            return f"ok  {self.file}: {self.model.name}, {what}"
        assert self.graph is not None
        steps, count = _steps(self.graph), parameters(self.graph)
        return f"ok  {self.file}: {self.graph.name}, {steps} step{'s' * (steps != 1)}, {count:,} parameters"


def check(
    files: Files,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail as well.")] = False,
    design: Mixer = None,
    legs: Legs = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Check designs, or models of designs, and tell all that is wrong with them."""
    from tensornet_attn.cli.output import print_json

    sizes, numbers = overrides(legs, "--legs"), overrides(settings, "--set")
    findings = []
    for file in files:
        finding = examine(file, sizes, numbers, design)
        findings.append(finding)
        if not as_json:
            _tell(finding, strict)
    if as_json:
        print_json([finding.as_dict(strict) for finding in findings])
    if not all(finding.good(strict) for finding in findings):
        raise typer.Exit(1)


def examine(file: str, legs: Numbers, settings: Numbers, mixer: str | None = None) -> Finding:
    """Reads one file and checks its diagram, or every diagram of a model."""
    from tensornet_attn import graph
    from tensornet_attn.spec.read import read_document
    from tensornet_attn.spec.sources import document_of, text_document
    from tensornet_attn.special.check import check_contains

    if file == "-" and not legs and not settings:
        document, reporter = text_document(standard_input(), "<stdin>", None)
    else:
        document, reporter = document_of(source_of(file), "design or model")
    if "model" in document.data:
        return _examine_model(file, document, reporter, changes(mixer, legs, settings))
    if mixer is not None and document.data:
        raise typer.BadParameter(f"'{file}' is a design; --design is for models.", param_hint="'--design'")
    reading = read_document(document, reporter, legs, settings)
    built = graph.examine(reading)
    check_contains(reading)
    problems = tuple(reading.reporter.problems())
    wrong = any(problem.severity == "error" for problem in problems)
    return Finding("<stdin>" if file == "-" else file, problems, None if wrong else built)


def _examine_model(file: str, document: Document, reporter: Reporter, different: Mapping[str, Any]) -> Finding:
    """Reads a model and checks every design in its place, as it stands and with what is to be otherwise in it."""
    from tensornet_attn.models.read import override, read_model

    model, problems = read_model(document, reporter), reporter.problems()
    if model is not None:
        try:
            model = override(model, different)
        except DesignError as error:
            model, problems = None, [*problems, *error.problems]
    return Finding("<stdin>" if file == "-" else file, tuple(problems), None, model)


def _tell(finding: Finding, strict: bool) -> None:
    for problem in finding.problems:
        print(problem, file=sys.stderr)
    if finding.good(strict):
        print(finding.ok_line(), flush=True)  # flushed, so that lines of both streams keep their order


def parameters(graph: Graph) -> int:
    """The number of trainable and frozen parameters."""
    return sum(prod(size or 0 for size in graph.shape_of(weight.name)) for weight in graph.of_role("weight"))


def _steps(graph: Graph) -> int:
    """The steps as the file names them: what is nested in a box is part of it."""
    return sum(not step.nested for step in graph.steps)
