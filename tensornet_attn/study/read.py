"""From a study file, options, or both to a checked Study: its space written out, its rungs ready to be trained."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tensornet_attn.errors import DesignError, InputError, nearest
from tensornet_attn.models.parts import is_path
from tensornet_attn.models.refuse import written
from tensornet_attn.search.read import load
from tensornet_attn.search.space import Space
from tensornet_attn.spec.places import Document
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.sources import text_document
from tensornet_attn.study.config import OBJECTIVES, Limit, Rung, Study
from tensornet_attn.study.fit import fitted
from tensornet_attn.study.objectives import larger
from tensornet_attn.study.rungs import SHORT, check_rungs, rungs_of
from tensornet_attn.study.written import plain, space_data
from tensornet_attn.tasks.reading import read_bytes

Source = str | os.PathLike[str] | Mapping[str, Any] | None
PAGE = "docs/search.md lists all keys."


def read(source: Source, options: Mapping[str, Any]) -> Study:
    """The study of a file or a mapping; `options` are its keys and win over what it says, where they are not None.

    In place of `rungs` there may be one `task` with its `options`, `run`, `rates`, `measure` and `score`; a short one
    of mqar then comes before it. A bound may be a number: the most of a cost, the least of quality. Paths are relative
    to the file. Raises DesignError with all that is wrong in the file or its space, InputError for anything else.
    """
    document, reporter = _document(source)
    _refuse(reporter)
    options = {key: value for key, value in options.items() if value is not None}
    given = _joined(document.data, options)
    study = _checked(given, document, reporter, options)
    _check_bounds(study)
    check_rungs(study)
    return fitted(study, load(study.space))


def _refuse(reporter: Reporter) -> None:
    if reporter.failed:
        raise DesignError(reporter.problems(), "study")


def _document(source: Source) -> tuple[Document, Reporter]:
    """What the file says, its paths made absolute."""
    if source is None or isinstance(source, Mapping):
        document = Document(plain(source or {}), "study")
        return document, Reporter(document)
    name = os.fspath(source)
    document, reporter = text_document(read_bytes(Path(name)), name, os.path.abspath(name))
    if {problem.code for problem in reporter.found} & {"empty", "not-a-mapping"}:
        raise InputError(f"'{name}' holds no study: it is a mapping that begins with 'study: 1'.")
    if not reporter.failed and document.data.get("study") != 1:
        given = written(document.data.get("study"))
        message = f"this package reads version 1 of study files, {given} given."
        reporter.error("version", message, ("study",), hint="write 'study: 1'.")
    folder = os.path.dirname(document.path or "")
    if "space" in document.data:
        document.data["space"] = _beside(document.data["space"], folder)
    return document, reporter


def _beside(space: Any, folder: str) -> Any:
    """A space of a study file, its own path or those of its bases from the file's folder on."""
    if isinstance(space, str):
        return os.path.join(folder, space) if "\n" not in space else space
    if not isinstance(space, Mapping) or "base" not in space:
        return space
    several = isinstance(space["base"], list)
    bases = space["base"] if several else [space["base"]]
    found = [os.path.join(folder, one) if isinstance(one, str) and is_path(one) else one for one in bases]
    return {**space, "base": found if several else found[0]}


def _joined(data: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of a study, as Study has them. A task among the options stands for rungs of the file, and so back."""
    dropped: tuple[str, ...] = ("rungs",) if "task" in options else SHORT if "rungs" in options else ()
    given = {key: value for key, value in data.items() if key not in dropped} | dict(options)
    if "rungs" in given and "task" in given:
        raise InputError("a study has either 'rungs' or a 'task', the last rung after a short one of mqar; not both.")
    if given.get("space") is None:
        raise InputError("a study needs a 'space': the path of a space file, or what stands in one.")
    given["space"] = space_data(_space(given["space"]))
    if "rungs" not in given:
        given["rungs"] = rungs_of(given)
    elif any(key in given for key in SHORT):
        key = next(key for key in SHORT if key in given)
        raise InputError(f"'{key}' belongs to a 'task', and this study has 'rungs': give it in one of them.")
    given["rungs"] = _plain_rungs(given["rungs"])
    given["bounds"] = _limits(given.get("bounds") or {})
    return {key: value for key, value in given.items() if key not in SHORT}


def _space(given: Any) -> Space:
    """Raises DesignError for what is wrong in a space, InputError where there is none."""
    if not isinstance(given, (str, os.PathLike, Mapping, Space)):
        raise InputError(f"'space' is the path of a space file, or what stands in one, {written(given)} given.")
    if isinstance(given, os.PathLike) or (isinstance(given, str) and not {"\n", "{"} & {*given}):
        read_bytes(Path(given))  # a name that is no file is no name of a shipped design either
    return load(given)


def _plain_rungs(rungs: Any) -> Any:
    if not isinstance(rungs, (list, tuple)):
        return rungs
    return [one.model_dump() if isinstance(one, Rung) else plain(one) for one in rungs]


def _limits(bounds: Any) -> Any:
    """Bounds with the least and the most: a number is the most of a cost, and the least of quality."""
    if not isinstance(bounds, Mapping):
        return bounds
    return {name: _limit(name, given) for name, given in bounds.items()}


def _limit(name: str, given: Any) -> Any:
    if isinstance(given, Limit):
        return given.model_dump()
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return {"least" if larger(name) else "most": given} if number else given


def _checked(given: Mapping[str, Any], document: Document, reporter: Reporter, options: Mapping[str, Any]) -> Study:
    try:
        return Study(**given)
    except ValidationError as error:
        told = []
        for raw in _innermost(error.errors(include_url=False)):
            key = raw["loc"][0] if raw["loc"] else None
            if key in document.data and key not in options:
                _report(reporter, raw)
            else:
                told.append(_option(raw))
        _refuse(reporter)
        raise InputError("\n".join(dict.fromkeys(told))) from error


def _innermost(errors: Sequence[Any]) -> list[Any]:
    """Without those of a list that is short of what was refused in it."""
    places = [raw["loc"] for raw in errors]
    return [raw for raw in errors if not any(raw["loc"] == at[: len(raw["loc"])] != at for at in places if raw["loc"])]


def _report(reporter: Reporter, raw: Any) -> None:
    """What is wrong in the file, at its place."""
    path = tuple(raw["loc"])
    if raw["type"] == "extra_forbidden":
        hint = reporter.nearest(str(path[-1]), _known(path))
        reporter.error("unknown-key", f"there is no key '{printable(str(path[-1]))}' here.", path, key=True, hint=hint)
        return
    given = "" if raw["type"] == "missing" else f", {written(raw['input'])} given"
    reporter.error("wrong-value", f"{_where(path)}: {_sentence(raw)}{given}.", path, hint=PAGE)


def _known(path: tuple[Any, ...]) -> list[str]:
    """The keys that are known where a path ends."""
    inner = {"rungs": Rung.model_fields, "bounds": Limit.model_fields}
    return [*inner[str(path[0])]] if len(path) > 1 and path[0] in inner else [*Study.model_fields, *SHORT]


def _option(raw: Any) -> str:
    """What is wrong with an option, in one sentence."""
    path = tuple(raw["loc"])
    if not path:
        return f"{raw['msg']}."
    if raw["type"] == "extra_forbidden":
        return f"a study has no option '{printable(_where(path))}': {nearest(str(path[-1]), _known(path))}"
    if raw["type"] == "missing":
        return f"a study needs '{_where(path)}': {PAGE}"
    return f"option '{printable(_where(path))}': {_sentence(raw)}, {written(raw['input'])} given."


def _where(path: tuple[Any, ...]) -> str:
    """`rungs 2 rates`: a place in a study, counted from 1."""
    return " ".join(str(step + 1) if isinstance(step, int) else str(step) for step in path)


def _sentence(raw: Any) -> str:
    if raw["type"] == "too_short":
        return "at least one is needed"
    return str(raw["msg"][0].lower() + raw["msg"][1:])


def _check_bounds(study: Study) -> None:
    """Raises InputError for objectives that are given twice and bounds that nothing can keep."""
    twice = next((name for name in OBJECTIVES if study.objectives.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"the objective '{twice}' is given twice: once is enough.")
    for name, limit in study.bounds.items():
        if isnan(limit.least) or isnan(limit.most) or not limit.least <= limit.most:
            raise InputError(
                f"the bound on '{name}' has its least, {limit.least:g}, above its most, {limit.most:g}; e.g. 1000000, "
                "or {least: 1000, most: 1000000}."
            )
