"""Tasks by name: reproducible samples by number, their loss and their score."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from pydantic import ValidationError

from tensornet_attn.errors import InputError, TensornetError, nearest
from tensornet_attn.named import name_of, named, sentence
from tensornet_attn.tasks.alphabet import Alphabet, Bytes
from tensornet_attn.tasks.chance import SPLITS, Integers, RandomStream, Rows
from tensornet_attn.tasks.reading import Cache, MissingFile, default_folder, fingerprint
from tensornet_attn.tasks.recipe import BLOCK, Kind, Options, Recipe, Source
from tensornet_attn.tasks.recipes import RECIPES
from tensornet_attn.tasks.recipes.texts import Sliding

if TYPE_CHECKING:
    import torch

    from tensornet_attn.tasks.batch import Batch, Score

_HELD = 1 << 29  # maximum bytes of blocks in memory
_SHOWN = 8  # samples of each split that identify a recipe of the user


@dataclass(frozen=True, eq=False)
class Task:
    """A recipe with options and a seed; created by `task_named`.

    `samples(split, start, count)` depends only on its arguments, on any machine. A finite training split repeats, in
    another order each epoch, drawn with the seed.
    """

    recipe: Recipe
    options: Options
    seed: int
    source: Source = field(repr=False)
    cache: Cache = field(repr=False)
    held: OrderedDict[tuple[str, int], Rows] = field(default_factory=OrderedDict, repr=False)

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def kind(self) -> Kind:
        return self.source.kind

    @property
    def vocabulary(self) -> int:
        """The number of tokens; tokens are 0 to vocabulary - 1."""
        return len(self.source.alphabet)

    @property
    def alphabet(self) -> Alphabet | Bytes:
        """The meaning of the tokens, with `encode` and `decode`."""
        return self.source.alphabet

    @property
    def features(self) -> int | None:
        """The number of features of a position; None if positions have tokens."""
        return self.source.features

    @property
    def length(self) -> int:
        """The number of tokens of a sample, n, the same for all samples of a task."""
        return self.source.length

    @property
    def classes(self) -> int | None:
        """The number of classes of a classification; None for other tasks."""
        return None if self.source.classes is None else len(self.source.classes)

    @property
    def causal(self) -> bool:
        """Whether the answer at a position may use only the tokens up to it."""
        return self.kind == "language_model"

    def as_dict(self) -> dict[str, Any]:
        """Task, version, seed and options, which determine every sample of a generated task."""
        chosen = self.options.model_dump(mode="json")
        return {"task": self.name, "version": self.recipe.version, "seed": self.seed, "options": chosen}

    @cached_property
    def samples_hash(self) -> str | None:
        """A hash of the first samples of each split with seed 0, for a recipe of the user; None for a task by name.

        It shows that a recipe has changed although its `version` has not.
        """
        if any(recipe is self.recipe for recipe in RECIPES):
            return None
        from tensornet_attn.tasks.batch import batch_of  # imports torch

        parts: list[bytes | str] = []
        for split, size in self.source.sizes.items():
            index = np.arange(_SHOWN if size is None else min(_SHOWN, size))
            rows = self.source.rows(RandomStream(self.name, self.recipe.version, split, 0), index)
            if not rows:
                continue  # a split without samples
            batch = batch_of(rows, self.source.padding)
            dims = 1 if self.kind == "classification" else 2
            lengths = {self.length} if batch.source is None else {*batch.tokens.shape[1:2]}
            if batch.tokens.shape[1] not in lengths or batch.targets.shape != batch.tokens.shape[:dims]:
                raise InputError(
                    f"task '{self.name}': 'tokens' are {list(batch.tokens.shape)} and 'targets' "
                    f"{list(batch.targets.shape)}; for a {self.kind} of length {self.length}, return "
                    f"[samples, {self.length}] and {['[samples]', f'[samples, {self.length}]'][dims - 1]}."
                )
            for name, values in sorted(vars(batch).items()):
                if values is not None:
                    parts += [f"{split} {name} {list(values.shape)}", values.numpy().tobytes()]
        return fingerprint(parts)[:16]

    def size(self, split: str) -> int | None:
        """The number of samples of a split; None if it is unlimited. Raises InputError for an unknown split."""
        if split not in SPLITS:
            raise InputError(f"there is no split '{split}': {nearest(split, SPLITS)}")
        return self.source.sizes[split]

    def samples(self, split: str, start: int, count: int) -> Batch:
        """Samples start to start + count - 1 of a split. Raises InputError past the end of an evaluation split."""
        from tensornet_attn.tasks.batch import batch_of

        index = self._places(split, start, count)
        stream = RandomStream(self.name, self.recipe.version, split, self.seed)
        in_blocks = self.recipe.drawn and self.cache.folder is not None
        rows = self._stored(stream, index) if in_blocks else self.source.rows(stream, index)
        return batch_of(rows, self.source.padding)

    def batches(self, split: str, count: int) -> Iterator[Batch]:
        """All samples of a finite split in order, `count` at a time; the last batch may be smaller.

        Raises InputError for an unknown or unlimited split.
        """
        size = self.size(split)
        if size is None:
            raise InputError(f"split '{split}' of task '{self.name}' is unlimited: use samples(split, start, count).")
        return (self.samples(split, start, min(count, size - start)) for start in range(0, size, count))

    def sliding(self, split: str, count: int, context: int, stride: int = 1) -> Iterator[Batch]:
        """Windows of `context` tokens that slide over a text by `stride`, `count` at a time; see `Sliding`.

        Raises InputError for a task without a text, and for windows that would skip tokens.
        """
        from tensornet_attn.tasks.batch import batch_of

        self.size(split)
        if self.source.texts is None:
            raise InputError(f"task '{self.name}' has no text for sliding windows; use a text task such as char_lm.")
        if not 1 <= stride <= context:
            raise InputError(f"windows of {context} tokens cannot slide by {stride}: choose 1 to {context}.")
        text = self.source.texts[split]
        slide = Sliding(len(text), context, stride)
        starts = range(0, slide.windows, count)
        spans = (np.arange(start, min(start + count, slide.windows)) for start in starts)
        return (batch_of(slide.rows(text, span), self.source.padding) for span in spans)

    def loss(
        self, logits: torch.Tensor, batch: Batch, at: torch.Tensor | None = None, smoothing: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (sum of the losses in nats, number of scored positions), with gradient, for training.

        `at` [k]: flat indices row * n + position of `logits` [k, vocabulary]; they include all scored positions.
        `smoothing`: label smoothing, spread evenly over all answers. Raises InputError for logits of another shape.
        """
        from tensornet_attn.tasks.batch import loss

        targets = batch.targets if at is None else batch.targets.flatten()[at]
        return loss(self._checked(logits, targets), targets, smoothing)

    def score(self, logits: torch.Tensor, batch: Batch, at: torch.Tensor | None = None) -> Score:
        """Loss and accuracy of `logits` [batch, n, vocabulary], or [batch, classes] for a classification.

        `at` as for `loss`. Raises InputError for logits of another shape.
        """
        from tensornet_attn.tasks.batch import score

        targets = batch.targets if at is None else batch.targets.flatten()[at]
        return score(self._checked(logits, targets), batch, self.source.groups, self.source.measure, at)

    def _checked(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        expected = [*targets.shape, self.classes or self.vocabulary]
        if list(logits.shape) != expected:
            raise InputError(f"task '{self.name}': the logits have shape {list(logits.shape)}; give {expected}.")
        return logits

    def _places(self, split: str, start: int, count: int) -> Integers:
        """The numbers of the samples, in the order of the split or, for training, of the epoch."""
        size = self.size(split)
        if start < 0 or count < 1:
            raise InputError(f"samples(start={start}, count={count}): start must be at least 0, count at least 1.")
        if split != "train" and size is not None and start + count > size:
            raise InputError(
                f"split '{split}' of task '{self.name}' has {size:,} samples, not {start:,} to {start + count - 1:,}."
            )
        index = np.arange(start, start + count)
        if split != "train" or size is None:
            return index
        stream = RandomStream(self.name, self.recipe.version, split, self.seed)
        block = BLOCK if self.recipe.drawn else 1  # the cache stores generated samples in blocks
        epochs = {epoch: stream.order(epoch, size, block) for epoch in range(start // size, int(index[-1]) // size + 1)}
        return np.array([epochs[number // size][number % size] for number in index.tolist()])

    def _stored(self, stream: RandomStream, index: Integers) -> Rows:
        """Samples from their blocks."""
        block = index // BLOCK
        rows: Rows = {}
        for number in np.unique(block).tolist():
            in_block = block == number
            for name, values in self._block(stream, number).items():
                taken = values[index[in_block] % BLOCK]
                target = rows.setdefault(name, np.zeros((len(index), *values.shape[1:]), np.int64))
                target[in_block] = taken
        return rows

    def _block(self, stream: RandomStream, number: int) -> Rows:
        """The samples from number * BLOCK on: from memory, from disk, or generated."""
        if (stream.split, number) not in self.held:
            key = self.as_dict() | {"split": stream.split, "block": number}
            key |= {"samples": self.samples_hash} if self.samples_hash else {}
            key["options"] = {
                name: option for name, option in key["options"].items() if name not in SPLITS
            }  # sizes change no sample
            index = np.arange(number * BLOCK, (number + 1) * BLOCK)
            self.held[stream.split, number] = self.cache.keep(key, lambda: self.source.rows(stream, index))
            held_bytes = sum(values.nbytes for rows in self.held.values() for values in rows.values())
            while len(self.held) > 1 and held_bytes > _HELD:
                _, oldest = self.held.popitem(last=False)
                held_bytes -= sum(values.nbytes for values in oldest.values())
        self.held.move_to_end((stream.split, number))
        return self.held[stream.split, number]


def list_tasks(pattern: str = "*") -> list[Recipe]:
    """The tasks whose names match a glob pattern, sorted by name.

    >>> [recipe.name for recipe in list_tasks("*copy")]
    ['copy', 'selective_copy']
    """
    return sorted((recipe for recipe in RECIPES if fnmatchcase(recipe.name, pattern)), key=lambda recipe: recipe.name)


def task_named(
    name: str | Recipe, *, seed: int = 0, cache: bool | str | os.PathLike[str] | None = None, **options: Any
) -> Task:
    """Creates a task from its name, or from your own recipe or its name `module:name`.

    `list_tasks` returns the recipes of this package with their options.
    `cache`: None stores samples that are slow to generate in the user's cache directory, False stores nothing; True or
    a folder stores the samples of every generated task. Raises InputError for an unknown task or option, or a missing
    file.

    >>> task = task_named("mqar", length=64, pairs=8)
    >>> task.samples("train", 0, 32).tokens.shape
    torch.Size([32, 64])
    """
    recipe = name if isinstance(name, Recipe) else recipe_named(name)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed is {seed!r}; give a whole number.")
    chosen = checked(recipe, options)
    folder = None
    if cache is not False and (cache is not None or recipe.costly):
        folder = default_folder() if cache is None or cache is True else Path(os.fspath(cache))
    where = Cache(folder)
    try:
        source = recipe.open(chosen, where)
        if not isinstance(source, Source):
            raise InputError(f"task '{recipe.name}': 'open' returned {source!r:.60}; return a Source.")
        if source.kind not in get_args(Kind):
            raise InputError(
                f"task '{recipe.name}': there is no kind '{source.kind}': {nearest(source.kind, get_args(Kind))}"
            )
        task = Task(recipe, chosen, seed, source, where)
        task.samples_hash  # noqa: B018 - tries the recipe of a user
    except MissingFile as error:
        raise MissingFile(f"{error} Task '{recipe.name}': {recipe.files}" if recipe.files else str(error)) from error
    except Exception as error:
        if isinstance(error, (TensornetError, OSError, MemoryError)) or any(recipe is shipped for shipped in RECIPES):
            raise
        raise InputError(f"task '{recipe.name}' raised {sentence(error)}.") from error
    return task


def recipe_named(name: str) -> Recipe:
    """The recipe of a task by name, or of the user by `module:name`. Raises InputError if there is none."""
    by_name = {recipe.name: recipe for recipe in RECIPES}
    if ":" in name:
        return named(name, "task", "a Recipe", Recipe)  # type: ignore[no-any-return]
    if name not in by_name:
        raise InputError(f"there is no task '{name}': {nearest(name, by_name)}")
    return by_name[name]


def name_of_task(task: Recipe | Callable[..., Any]) -> str:
    """The name of a recipe for `recipe_named`, or `module:name` of a function for `search`.

    Raises InputError for what is not a variable of a module.
    """
    if not isinstance(task, Recipe):
        return name_of(task, "task")
    shipped = any(task is recipe for recipe in RECIPES)
    return task.name if shipped else name_of(task, "task", task.options.__module__)


def checked(recipe: Recipe, options: dict[str, Any]) -> Options:
    """The options of a recipe. Raises InputError with a line for each invalid option."""
    try:
        chosen: Options = recipe.options(**options)
        return chosen
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
    return f"task '{recipe.name}', option '{name}': {message}, got {problem['input']!r}."


def describe(recipes: Iterable[Recipe]) -> str:
    """One line per task: its name and description."""
    return "".join(f"{recipe.name:<20}{recipe.about}\n" for recipe in recipes)
