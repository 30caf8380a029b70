"""Frees large values after their last use, as the predicted peak of a plan assumes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_VIEW = re.compile(r"(\w+)(\.mT|\.(transpose|movedim|flatten|unflatten|unsqueeze|squeeze)\([^()]*\)|\[[^][]*\])*")
_HIDDEN = re.compile(r"(?:hide\()?(\w+)(?:, | if key_mask is None else )")


def freed(groups: Sequence[Sequence[str]], long: Collection[str], after: str = "") -> list[list[str]]:
    """Adds `del a, b` after the last use of values with two `long` dimensions and of their views.

    Values that the result alone follows stay: freeing them costs new pages more than it saves. So does a hidden input,
    which is the input itself if nothing hides. The comment at the end of a line has the dimensions of its value.
    `after`: code that runs after the lines.
    """
    lines = [line for group in groups for line in group]
    code = [*("" if line.startswith("#") else line.partition("  # ")[0] for line in lines), after]
    computed = {line.partition(" = ")[0] for line in lines if "  # " in line}
    last_uses, view_uses = dict[str, int](), dict[str, int]()
    for index in reversed(range(len(lines))):
        name, _, expression = code[index].partition(" = ")
        dimensions = [word.strip("()") for word in lines[index].partition("  # ")[2].split()]
        hidden = _HIDDEN.match(expression)
        large = sum(dimension in long for dimension in dimensions) > 1
        if name.isidentifier() and large and (hidden is None or hidden[1] in computed):
            pattern = re.compile(rf"(?<![.\w]){name}\b")
            last_use = max(later for later in range(index, len(code)) if pattern.search(code[later]))
            last_uses[name] = max(last_use, view_uses.get(name, 0))
            if view := _VIEW.fullmatch(expression):
                view_uses[view[1]] = max(last_uses[name], view_uses.get(view[1], 0))
    freed_groups, index, end = list[list[str]](), 0, len(lines) if after else len(lines) - 1
    for group in groups:
        freed_groups.append([])
        for line in group:
            dead = [name for name in reversed(last_uses) if last_uses[name] == index]
            index += 1
            freed_groups[-1] += [line, *([f"del {', '.join(dead)}"] if dead and index < end else [])]
    return freed_groups
