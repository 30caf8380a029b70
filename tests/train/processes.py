"""A process that trains: `processes.py RUN.json OUT`; Fabric and torchrun start it again, once for each process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tensornet_attn as ta

if __name__ == "__main__":
    ta.train(json.loads(Path(sys.argv[1]).read_text()), out=sys.argv[2])
