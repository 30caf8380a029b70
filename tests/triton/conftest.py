"""Two runs. With TRITON_INTERPRET=1 kernels run on the CPU; without it they are compiled for GPUs that are not here.

Triton decides when it is imported which of the two a process does; what needs neither is part of the second run.
"""

from __future__ import annotations

from pathlib import Path

from tensornet_attn.runtime.triton.target import interpreting, mend_interpreter

NOT_INTERPRETED = {"test_compiles.py", "test_region_compiles.py", "test_configure.py", "test_kept.py", "test_target.py"}
_FILES = {path.name for path in Path(__file__).parent.glob("test_*.py")}
collect_ignore = sorted(_FILES & NOT_INTERPRETED if interpreting() else _FILES - NOT_INTERPRETED)

if interpreting():
    mend_interpreter()
