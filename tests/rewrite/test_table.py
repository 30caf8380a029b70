"""The page about rewrites names every rule with its algebra, in order."""

from __future__ import annotations

import re
from pathlib import Path

from tensornet_attn.rewrite.table import GROUPS

PAGE = Path(__file__).resolve().parents[2] / "docs/rewrites.md"


def test_the_page_lists_the_rules() -> None:
    shown = re.findall(r"^\| ([^|]+) \| `([^`]+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert shown == [(rule.name, rule.algebra) for group in GROUPS for rule in group.rules]
