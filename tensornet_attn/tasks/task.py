"""A task by name: samples by number, the same on every machine and in every batch, and the score of an answer."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.tasks.alphabet import Alphabet, Bytes
from tensornet_attn.tasks.chance import SPLITS, Integers, Rows, Stream
from tensornet_attn.tasks.reading import Cache, MissingFile, default_folder
from tensornet_attn.tasks.recipe import BLOCK, Kind, Options, Recipe, Source
from tensornet_attn.tasks.recipes import RECIPES
from tensornet_attn.tasks.recipes.texts import Sliding

if TYPE_CHECKING:
    import torch

    from tensornet_attn.tasks.batch import Batch, Score

_HELD = 1 << 29  # bytes of blocks that are held in memory


@dataclass(frozen=True, eq=False)
class Task:
    """A recipe with options and a seed.

    `samples(split, start, count)` is a function of these numbers alone. Training samples may be numbered without end: a
    finite split comes again, each time in another order, drawn with the seed.
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
        """What the tokens stand for, with `encode` and `decode`."""
        return self.source.alphabet

    @property
    def features(self) -> int | None:
        """How many numbers stand at each position in place of a token; None for tokens."""
        return self.source.features

    @property
    def length(self) -> int:
        """The number of tokens of a sample, n; every sample of a task has it."""
        return self.source.length

    @property
    def classes(self) -> int | None:
        """The number of classes of a classification."""
        return None if self.source.classes is None else len(self.source.classes)

    @property
    def causal(self) -> bool:
        """Whether the answer at a place may use only the tokens up to it."""
        return self.kind == "language_model"

    def as_dict(self) -> dict[str, Any]:
        """Task, version, seed and options: what fixes every sample of a drawn task."""
        chosen = self.options.model_dump(mode="json")
        return {"task": self.name, "version": self.recipe.version, "seed": self.seed, "options": chosen}

    def size(self, split: str) -> int | None:
        """The number of samples of a split; None for a training split without end."""
        if split not in SPLITS:
            raise InputError(f"there is no split '{split}': {nearest(split, SPLITS)}")
        return self.source.sizes[split]

    def samples(self, split: str, start: int, count: int) -> Batch:
        """Samples start to start + count - 1 of a split. Raises InputError past the end of an evaluation split."""
        from tensornet_attn.tasks.batch import batch_of

        index = self._places(split, start, count)
        stream = Stream(self.name, self.recipe.version, split, self.seed)
        in_blocks = self.recipe.drawn and self.cache.folder is not None
        rows = self._stored(stream, index) if in_blocks else self.source.rows(stream, index)
        return batch_of(rows, self.source.padding)

    def batches(self, split: str, count: int) -> Iterator[Batch]:
        """All samples of a finite split in order, `count` at a time; the last batch is what is left."""
        size = self.size(split)
        if size is None:
            raise InputError(f"split '{split}' of task '{self.name}' has no end: take samples from it.")
        return (self.samples(split, start, min(count, size - start)) for start in range(0, size, count))

    def sliding(self, split: str, count: int, context: int, stride: int = 1) -> Iterator[Batch]:
        """Windows of `context` tokens that slide over a running text by `stride`, `count` at a time; see `Sliding`.

        Raises InputError for a task that is no running text, and for windows that would leave tokens out.
        """
        from tensornet_attn.tasks.batch import batch_of

        self.size(split)
        if self.source.texts is None:
            raise InputError(f"task '{self.name}' is no running text that a window could slide over, as char_lm is.")
        if not 1 <= stride <= context:
            raise InputError(
                f"windows of {context} tokens cannot slide by {stride}: a window slides by 1 token at least, and by "
                "its length at most."
            )
        text = self.source.texts[split]
        slide = Sliding(len(text), context, stride)
        starts = range(0, slide.windows, count)
        spans = (np.arange(start, min(start + count, slide.windows)) for start in starts)
        return (batch_of(slide.rows(text, span), self.source.padding) for span in spans)

    def loss(
        self, logits: torch.Tensor, batch: Batch, at: torch.Tensor | None = None, smoothing: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(sum of the losses in nats, count): to train, with gradient. Raises InputError for logits of other sizes.

        `at` [k]: places, counted through all rows, that `logits` [k vocabulary] are for; all that is scored is there.
        `smoothing`: the share of label smoothing, spread evenly over all answers.
        """
        from tensornet_attn.tasks.batch import loss

        targets = batch.targets if at is None else batch.targets.flatten()[at]
        return loss(self._checked(logits, targets), targets, smoothing)

    def score(self, logits: torch.Tensor, batch: Batch, at: torch.Tensor | None = None) -> Score:
        """Loss and accuracy as sums and counts. `logits` are [batch n vocabulary] or, of classes, [batch classes].

        `at` as for `loss`.
        """
        from tensornet_attn.tasks.batch import score

        targets = batch.targets if at is None else batch.targets.flatten()[at]
        return score(self._checked(logits, targets), batch, self.source.groups, self.source.measure, at)

    def _checked(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        right = [*targets.shape, self.classes or self.vocabulary]
        if list(logits.shape) != right:
            raise InputError(f"task '{self.name}': the logits have shape {list(logits.shape)}; {right} is asked for.")
        return logits

    def _places(self, split: str, start: int, count: int) -> Integers:
        """The numbers of the samples in the order of the split: in training that of the epoch."""
        size = self.size(split)
        if start < 0 or count < 1:
            raise InputError(f"samples from {start}, {count} of them: start is at least 0, count at least 1.")
        if split != "train" and size is not None and start + count > size:
            raise InputError(
                f"split '{split}' of task '{self.name}' has {size:,} samples; {start:,} to {start + count - 1:,} were "
                "asked for."
            )
        index = np.arange(start, start + count)
        if split != "train" or size is None:
            return index
        stream = Stream(self.name, self.recipe.version, split, self.seed)
        block = BLOCK if self.recipe.drawn else 1  # samples that are drawn are stored with their neighbours
        epochs = {epoch: stream.order(epoch, size, block) for epoch in range(start // size, int(index[-1]) // size + 1)}
        return np.array([epochs[number // size][number % size] for number in index.tolist()])

    def _stored(self, stream: Stream, index: Integers) -> Rows:
        """Samples out of the blocks that hold them."""
        place = index // BLOCK
        rows: Rows = {}
        for number in np.unique(place).tolist():
            here = place == number
            for name, values in self._block(stream, number).items():
                taken = values[index[here] % BLOCK]
                target = rows.setdefault(name, np.zeros((len(index), *values.shape[1:]), np.int64))
                target[here] = taken
        return rows

    def _block(self, stream: Stream, number: int) -> Rows:
        """Samples number * BLOCK and on: held in memory, stored on disk, or made."""
        if (stream.split, number) not in self.held:
            key = self.as_dict() | {"split": stream.split, "block": number}
            key["options"] = {k: v for k, v in key["options"].items() if k not in SPLITS}  # sizes change no sample
            index = np.arange(number * BLOCK, (number + 1) * BLOCK)
            self.held[stream.split, number] = self.cache.keep(key, lambda: self.source.rows(stream, index))
            held = sum(values.nbytes for rows in self.held.values() for values in rows.values())
            while len(self.held) > 1 and held > _HELD:
                _, oldest = self.held.popitem(last=False)
                held -= sum(values.nbytes for values in oldest.values())
        self.held.move_to_end((stream.split, number))
        return self.held[stream.split, number]


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
