"""Two runs. With TRITON_INTERPRET=1 kernels run on the CPU; without it they are compiled for GPUs that are not here.

Triton decides when it is imported which of the two a process does; what needs neither is part of the second run.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tensornet_attn.runtime.triton.target import interpreting, mend_interpreter

NOT_INTERPRETED = {"test_compiles.py", "test_region_compiles.py", "test_configure.py", "test_kept.py", "test_target.py"}
_FILES = {path.name for path in Path(__file__).parent.glob("test_*.py")}
collect_ignore = sorted(_FILES & NOT_INTERPRETED if interpreting() else _FILES - NOT_INTERPRETED)


def quicken_interpreter() -> None:
    """Saves a third of the time of tests: the interpreter replaces the language anew at each call inside of a kernel.

    Here it does so at the first call until the kernel ends, and keeps its table of numpy's types.
    """
    from triton.runtime import interpreter

    replace, numpy_type = interpreter._patch_lang, interpreter._get_np_dtype
    replaced: set[int] = set()  # of the modules `tl` and `tl.core`, by which functions see the language
    numpy_types: dict[str, Any] = {}

    class Replacement(interpreter._LangPatchScope):
        def restore(self) -> None:
            replaced.clear()
            super().restore()

    @cache
    def languages(function: Any) -> set[int]:
        return {id(interpreter.tl), id(interpreter.tl.core)} & set(map(id, function.__globals__.values()))

    def replace_once(function: Any) -> Any:
        if languages(function) and languages(function) <= replaced:
            return Replacement()
        replaced.update(languages(function))
        return replace(function)

    def numpy_type_of(kind: Any) -> Any:
        if kind.name not in numpy_types:
            numpy_types[kind.name] = numpy_type(kind)
        return numpy_types[kind.name]

    interpreter._LangPatchScope = Replacement
    interpreter._patch_lang, interpreter._get_np_dtype = replace_once, numpy_type_of


if interpreting():
    mend_interpreter()
    quicken_interpreter()
