"""Tasks by name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.tasks.cache import Cache, default_folder
from tensornet_attn.tasks.reading import MissingFile
from tensornet_attn.tasks.recipe import Options, Recipe
from tensornet_attn.tasks.recipes import RECIPES
from tensornet_attn.tasks.task import Task


def list_tasks(pattern: str = "*") -> list[Recipe]:
    """The tasks whose name fits a pattern, by name.

    >>> [recipe.name for recipe in list_tasks("*copy")]
    ['copy', 'selective_copy']
    """
    return sorted((recipe for recipe in RECIPES if fnmatchcase(recipe.name, pattern)), key=lambda recipe: recipe.name)


def task_named(
    name: str | Recipe, *, seed: int = 0, cache: bool | str | os.PathLike[str] | None = None, **options: Any
) -> Task:
    """A task with its options, which its recipe lists: `list_tasks`. A recipe of your own stands for its name.

    `cache` is the folder for samples that take long to make: None for the user's cache directory, False for none; a
    folder, or True, stores the samples of every task that draws them. Raises InputError.

    >>> task = task_named("mqar", length=64, pairs=8)
    >>> task.samples("train", 0, 32).tokens.shape
    torch.Size([32, 64])
    """
    known = {recipe.name: recipe for recipe in RECIPES}
    if not isinstance(name, Recipe) and name not in known:
        raise InputError(f"there is no task '{name}': {nearest(name, known)}")
    recipe = name if isinstance(name, Recipe) else known[name]
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed is {seed!r}; it is a whole number.")
    chosen = checked(recipe, options)
    folder = None
    if cache is not False and (cache is not None or recipe.costly):
        folder = default_folder() if cache in (None, True) else Path(os.fspath(cache))  # type: ignore[arg-type]
    where = Cache(folder)
    try:
        source = recipe.open(chosen, where)
    except MissingFile as error:
        raise MissingFile(f"{error} Task '{recipe.name}': {recipe.files}" if recipe.files else str(error)) from error
    return Task(recipe, chosen, seed, source, where)


def checked(recipe: Recipe, options: dict[str, Any]) -> Options:
    """The options of a recipe. Raises InputError with a line for each one that is wrong."""
    try:
        return recipe.options(**options)
    except ValidationError as error:
        lines = [_line(recipe, problem) for problem in error.errors(include_url=False)]
        raise InputError("\n".join(lines)) from error


def _line(recipe: Recipe, problem: Any) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        return f"task '{recipe.name}' has no option '{name}': {nearest(name, recipe.options.model_fields)}"
    if problem["type"] == "missing":
        meaning = recipe.options.model_fields[name].description or "it has no default"
        return f"task '{recipe.name}' needs option '{name}': {meaning}."
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"task '{recipe.name}', option '{name}': {message}; it is {problem['input']!r}."


def describe(recipes: Iterable[Recipe]) -> str:
    """A line a task: its name and what it is."""
    return "".join(f"{recipe.name:<20}{recipe.about}\n" for recipe in recipes)
