"""From a file and options to a Run: everything wrong in the file is told at its place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tensornet_attn.errors import DesignError, InputError, nearest
from tensornet_attn.models.parts import inside, is_path
from tensornet_attn.models.read import read_model
from tensornet_attn.models.refuse import written
from tensornet_attn.spec.places import Document
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.sources import document_of, text_document
from tensornet_attn.tasks.reading import read_bytes
from tensornet_attn.train.config import Run

Source = str | os.PathLike[str] | Mapping[str, Any] | None


def read(source: Source, options: Mapping[str, Any]) -> Run:
    """The run of a file or a mapping; `options` win over what it says.

    Raises DesignError with all that is wrong in the file, InputError for what is wrong with the options.
    """
    document, reporter = _document(source)
    _check_model(document, reporter, options)
    _refuse(reporter)
    try:
        return Run(**{**document.data, **options})
    except ValidationError as error:
        wrong = [_option(raw) for raw in error.errors() if not raw["loc"] or raw["loc"][0] not in document.data]
        for raw in error.errors():
            if raw["loc"] and raw["loc"][0] in document.data and raw["loc"][0] not in options:
                _report(reporter, raw)
        _refuse(reporter)
        given = [_option(raw) for raw in error.errors() if raw["loc"] and raw["loc"][0] in options]
        raise InputError("\n".join(dict.fromkeys(given + wrong))) from error


def _refuse(reporter: Reporter) -> None:
    if reporter.failed:
        raise DesignError(reporter.problems(), "run")


def _document(source: Source) -> tuple[Document, Reporter]:
    """What the file says, its paths made absolute."""
    if source is None:
        return _nothing()
    if isinstance(source, Mapping):
        return document_of(source) if source else _nothing()
    name = os.fspath(source)
    document, reporter = text_document(read_bytes(Path(name)), name, os.path.abspath(name))
    codes = {problem.code for problem in reporter.found}
    if codes & {"empty", "not-a-mapping"}:
        raise InputError(f"'{name}' holds no run: it is a mapping that begins with 'run: 1'.")
    if not reporter.failed and document.data.get("run") != 1:
        given = written(document.data.get("run"))
        message = f"this package reads version 1 of run files, {given} given."
        reporter.error("version", message, ("run",), hint="write 'run: 1'.")
    for key in ("model", "design"):
        value = document.data.get(key)
        if isinstance(value, str) and is_path(value):
            document.data[key] = os.path.join(os.path.dirname(document.path or ""), value)
    return document, reporter


def _nothing() -> tuple[Document, Reporter]:
    document = Document({}, "run")
    return document, Reporter(document)


def _check_model(document: Document, reporter: Reporter, options: Mapping[str, Any]) -> None:
    """A model that stands in the file is told at its places."""
    if isinstance(document.data.get("model"), Mapping) and "model" not in options:
        inner = Reporter(inside(document, ("model",)))
        read_model(inner.document, inner)
        reporter.found += inner.found


def _report(reporter: Reporter, raw: Any) -> None:
    path = tuple(raw["loc"])
    last = str(path[-1])
    if raw["type"] == "extra_forbidden":
        hint = reporter.nearest(last, Run.model_fields)
        reporter.error("unknown-key", f"there is no key '{printable(last)}' here.", path, key=True, hint=hint)
        return
    given = written(reporter.document.value(path))
    about = Run.model_fields[str(path[0])].description
    reporter.error("wrong-value", f"{_sentence(raw)}, {given} given.", path, hint=f"'{path[0]}' is {about}.")


def _option(raw: Any) -> str:
    """What is wrong with an option, in one sentence."""
    if not raw["loc"]:
        return f"{raw['msg']}."
    name = str(raw["loc"][0])
    if raw["type"] == "extra_forbidden":
        return f"a run has no option '{printable(name)}': {nearest(name, Run.model_fields)}"
    about = Run.model_fields[name].description
    if raw["type"] == "missing":
        return f"a run needs '{name}': {about}."
    return f"option '{name}': {_sentence(raw)}, {written(raw['input'])} given; it is {about}."


def _sentence(raw: Any) -> str:
    return raw["msg"][0].lower() + raw["msg"][1:]
