"""The ten steps on the page for contributors are those that a design takes, in their order, without a way back."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import tensornet_attn as ta
from tensornet_attn.cost.devices import GENERIC

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(ta.__file__).parent


def test_ten_steps_without_a_way_back() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = re.findall(r"^(\d+)\. `([\w/]+\.py)` `(\w+)`:", page, re.MULTILINE)
    assert [int(number) for number, *_ in steps] == list(range(1, 11))
    number_of = {(str(PACKAGE / file), name): int(number) for number, file, name in steps}
    taken = list[int]()

    def trace(frame: FrameType, event: str, _: Any) -> None:
        number = number_of.get((frame.f_code.co_filename, frame.f_code.co_name)) if event == "call" else None
        if number is not None and taken[-1:] != [number]:
            taken.append(number)

    source = (ROOT / "specs" / "tuformer" / "thsa.yaml").read_text(encoding="utf-8")
    source = source.replace("name: thsa", "name: traced")  # which no other test has compiled before
    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        module = ta.compile(source, "torch", device_costs=GENERIC)
        module(torch.randn(1, 3, 512))
    finally:
        sys.setprofile(before)
    assert taken == list(range(1, 11))
