"""The page about rewrites names every rule with its algebra, in order."""

from __future__ import annotations

import re
from pathlib import Path

from tensornet_attn.rewrite.table import GROUPS

PAGE = Path(__file__).resolve().parents[2] / "docs/rewrites.md"


RULES = [rule for group in GROUPS for rule in group.rules]


def test_the_page_lists_the_rules() -> None:
    shown = re.findall(r"^\| ([^|]+) \| `([^`]+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert shown == [(rule.name, rule.algebra) for rule in RULES]


def test_a_rule_that_is_no_pattern_says_why() -> None:
    shown = re.findall(r"^\| ([^|`]+) \| ([^|`]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = {rule.name for rule in RULES}
    assert [row for row in shown if row[0] in names] == [(rule.name, rule.why) for rule in RULES if rule.why]
    assert [rule.name for rule in RULES if not rule.why] == [rule.name for rule in RULES if rule.names is not None]
