"""Names of a user's own objects: found in the working directory, and refused in a sentence with the nearest name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tensornet_attn.named import name_of, named
from tensornet_attn.tasks import Recipe, list_tasks, task_named
from tensornet_attn.tasks.task import name_of_task, recipe_named
from tests import own_modules
from tests.refusals import refusal

MISTAKES = [
    ("own_task:", "the task 'own_task:' is not of the form module:name, e.g. my_module:task."),
    ("own task:parity", "the task 'own task:parity' is not of the form module:name, e.g. my_module:task."),
    (
        "own_tusk:parity",
        "the task 'own_tusk:parity': there is no module 'own_tusk' in the working directory or on PYTHONPATH; "
        "did you mean 'own_task'?",
    ),
    (
        "own_task.inner:parity",
        "the task 'own_task.inner:parity': there is no module 'own_task.inner' in package 'own_task'; "
        "run the command where the module is, or set PYTHONPATH.",
    ),
    (
        "own_task:prity",
        "the task 'own_task:prity': module 'own_task' ('{folder}/own_task.py') has no 'prity'; did you mean 'parity'?",
    ),
    (
        "own_task:Options",
        "the task 'own_task:Options': 'Options' of module 'own_task' ('{folder}/own_task.py') is not a Recipe: "
        "<class 'own_task.Options'>; known here: parity.",
    ),
    (
        "string:digits",
        f"the task 'string:digits': 'digits' of module 'string' ('{os.path.dirname(os.__file__)}/string.py') is not "
        "a Recipe: '0123456789'; define a Recipe there.",
    ),
    (
        "__main__:parity",
        "the task '__main__:parity': module '__main__' ('{folder}/script.py') has no 'parity'; what a "
        "script or notebook defines is found there only: move it to a module.",
    ),
]


@pytest.mark.parametrize(("name", "message"), MISTAKES)
def test_a_name_that_is_wrong(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_modules.write(monkeypatch, tmp_path, "own_task")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", f"{tmp_path}/script.py", raising=False)
    assert refusal(task_named, name) == message.replace("{folder}", str(tmp_path))


BROKEN = [
    ("1 / 0\n", "ZeroDivisionError: division by zero ('{file}', line 1)."),
    ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all' ('{file}', line 1)."),
    ("x = (\n", "SyntaxError: '(' was never closed (own_broken.py, line 1)."),
    ("raise SystemExit(3)\n", "SystemExit: 3 ('{file}', line 1)."),
]


@pytest.mark.parametrize(("text", "words"), BROKEN)
def test_a_module_that_fails(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_modules.write(monkeypatch, tmp_path, "own_broken", text)
    wanted = f"the task 'own_broken:x': importing 'own_broken' raised {words}"
    assert refusal(task_named, "own_broken:x") == wanted.replace("{file}", str(tmp_path / "own_broken.py"))


def inside() -> Callable[[], float]:
    return lambda: 0.0


def test_names_of_functions_and_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of(refusal, "task") == "tests.refusals:refusal"
    assert named("tests.refusals:refusal", "task", "a function", Callable) is refusal
    assert name_of(print, "task") == "builtins:print"
    own_modules.write(monkeypatch, tmp_path, "own_task")
    parity = recipe_named("own_task:parity")
    assert name_of_task(parity) == "own_task:parity"
    monkeypatch.setattr(sys.modules["__main__"], "again", parity, raising=False)
    assert name_of_task(parity) == "own_task:parity"
    assert [name_of_task(recipe) for recipe in list_tasks("*copy")] == ["copy", "selective_copy"]
    local = Recipe("local", 1, "", parity.options, parity.open)
    for wrong, shown in (
        (local, "local"),
        (inside(), "inside.<locals>.<lambda>"),
        (partial(print), repr(partial(print))),
    ):
        assert refusal(name_of_task, wrong) == (
            f"the task '{shown}' is not a variable of a module, where it can be found again: assign it to one."
        )
    monkeypatch.setattr(sys.modules["__main__"], "local", local, raising=False)
    assert name_of_task(local) == "__main__:local"


RECIPES_IN_ERROR = [
    ("bits.sum(1) % 2}", "bits.sum(1) % x}", "raised NameError: name 'x' is not defined (own_task.py:17)."),
    ("}, np.arange(len(bits))", "}", ": samples are made as {'tokens': array("),
    ('"tokens": bits', '"inputs": bits', ": samples are made as ({'inputs': array("),
    ('"targets": bits.sum(1) % 2', '"target": bits', "raised TypeError: Batch.__init__() got an unexpected"),
    (
        "bits.sum(1) % 2",
        "bits",
        ": 'tokens' are [8, 8] and 'targets' [8, 8]; for a classification of length 8, return [samples, 8] and "
        "[samples].",
    ),
    (
        '"classification"',
        '"language_model"',
        ": 'tokens' are [8, 8] and 'targets' [8]; for a language_model of length 8, return [samples, 8] and "
        "[samples, 8].",
    ),
    ("options.length, options.sizes", "9, options.sizes", ": 'tokens' are [8, 8] and 'targets' [8]; for a "),
    ('"classification"', '"clasification"', ": there is no kind 'clasification': did you mean 'classification'?"),
    ("    return Source(", "    Source(", ": 'open' returned None; return a Source."),
    ("options.sizes, make", "options.size, make", "raised AttributeError: 'Options' object has no attribute"),
    ("bits.sum(1) % 2}", "np.random.default_rng(0).integers(0)}", "raised ValueError: high <= 0 (own_task.py:17)."),
    (
        "Options, _open)",
        "Options, 5)",
        ": importing 'own_task' raised InputError: 'open' of a Recipe is 5; its type is Callable.",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), RECIPES_IN_ERROR)
def test_a_recipe_with_a_mistake(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_modules.PARITY.count(old) == 1
    own_modules.write(monkeypatch, tmp_path, "own_task", own_modules.PARITY.replace(old, new))
    found = refusal(task_named, "own_task:parity").removeprefix("the ")
    assert found.removeprefix("task 'parity'").removeprefix("task 'own_task:parity'").lstrip().startswith(message)


def test_what_a_recipe_may_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may return a list, and what it raises keeps its kind where that says what to do."""
    old = "return {"
    pair = own_modules.PARITY.replace(old, "return [{").replace("np.arange(len(bits))", "np.arange(len(bits))]")
    own_modules.write(monkeypatch, tmp_path, "own_task", pair)
    assert task_named("own_task:parity").length == 8
    for error in (MemoryError, FileNotFoundError, KeyboardInterrupt):
        own_modules.write(
            monkeypatch, tmp_path, "own_task", own_modules.PARITY.replace(old, f"raise {error.__name__}\n    {old}")
        )
        with pytest.raises(error):
            task_named("own_task:parity")


@pytest.mark.parametrize("recipe", [recipe for recipe in list_tasks() if recipe.drawn], ids=lambda recipe: recipe.name)
def test_shipped_recipes_keep_the_rules_of_a_users_recipe(recipe: Recipe) -> None:
    assert task_named(replace(recipe)).samples_hash
