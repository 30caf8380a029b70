"""A mistake that could be made in the compiler, with the tests that catch it.

It is one change of the text of one file: a sign, a scale, a mask, an axis, a lost term, a wrong gradient, a price.
The tests are those of what a user sees: outputs, gradients, messages, figures. Where a test is rewritten or goes, these
must still be caught: `python -m tests.mutations` makes each change in a copy of the tree and runs its tests there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutation:
    """`old`, which stands once in `file` (below tensornet_attn/), becomes `new`: that `breaks` something.

    `tests`: one of these fails then; pytest's node ids below tests/, or a module of the package whose examples run.
    """

    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        return Path("tensornet_attn") / self.file

    @property
    def nodes(self) -> tuple[str, ...]:
        """The tests as pytest is told them, from the root of the repository."""
        return tuple(test if test.startswith("tensornet_attn/") else f"tests/{test}" for test in self.tests)

    @property
    def interpreted(self) -> bool:
        """Whether kernels run, in Triton's interpreter."""
        return any(test.startswith("triton/") for test in self.tests)

    def applied(self, text: str) -> str:
        """The text of the file with the change. Raises ValueError where `old` does not stand there once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path}: {self.old!r} stands {text.count(self.old)} times, not once.")
        return text.replace(self.old, self.new)
