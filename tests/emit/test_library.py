"""What emitted files carry is found by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import tensornet_attn
from tensornet_attn.emit.functions import FILES, items, library


def test_no_name_is_given_twice() -> None:
    folder = Path(str(tensornet_attn.__file__)).parent
    files = [path for pattern in FILES for path in folder.glob(pattern) if path.name != "plain.py"]
    names = Counter(name for path in files for name, _ in items(path.read_text(encoding="utf-8")))
    assert [name for name, count in names.items() if count > 1] == []
    assert names.keys() == library().keys()
