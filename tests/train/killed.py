"""A process that trains and kills itself: `killed.py RUN.json OUT PLACE SHARE`.

PLACE counts what may be cut short: writes, moves, folders, and steps. At that one, of a write a share is done, anything
else is done or not, and then the process is gone. A PLACE of 0 kills nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any


def main(run: str, out: str, place: str, share: str) -> None:
    from tensornet_attn.train import start
    from tensornet_attn.train.start import train

    _mine(int(place), float(share), start)
    train(json.loads(Path(run).read_text()), out=out)


def _mine(place: int, share: float, start: Any) -> None:
    numbers = count(1)

    def risky(call: Callable[..., Any]) -> Callable[..., Any]:
        def done(*arguments: Any, **named: Any) -> Any:
            if next(numbers) != place:
                return call(*arguments, **named)
            try:
                if call is write:
                    write(arguments[0], arguments[1][: int(share * len(arguments[1]))])
                elif share > 0.5:
                    call(*arguments, **named)
            finally:  # a folder that is there already raises
                os.kill(os.getpid(), signal.SIGKILL)

        return done

    write = os.write
    for name in ("write", "fsync", "rename", "replace", "mkdir"):
        setattr(os, name, risky(getattr(os, name)))
    shutil.rmtree = risky(shutil.rmtree)
    start.optimise = risky(start.optimise)


if __name__ == "__main__":
    main(*sys.argv[1:])
