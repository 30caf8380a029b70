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
    made = {line.partition(" = ")[0] for line in lines if "  # " in line}
    ends, of_views = dict[str, int](), dict[str, int]()
    for place in reversed(range(len(lines))):
        name, _, text = code[place].partition(" = ")
        dimensions = [word.strip("()") for word in lines[place].partition("  # ")[2].split()]
        hidden = _HIDDEN.match(text)
        large = sum(one in long for one in dimensions) > 1
        if name.isidentifier() and large and (hidden is None or hidden[1] in made):
            word = re.compile(rf"(?<![.\w]){name}\b")
            last = max(i for i in range(place, len(code)) if word.search(code[i]))
            ends[name] = max(last, of_views.get(name, 0))
            if view := _VIEW.fullmatch(text):
                of_views[view[1]] = max(ends[name], of_views.get(view[1], 0))
    found, place, end = list[list[str]](), 0, len(lines) if after else len(lines) - 1
    for group in groups:
        found.append([])
        for line in group:
            dead = [name for name in reversed(ends) if ends[name] == place]
            place += 1
            found[-1] += [line, *([f"del {', '.join(dead)}"] if dead and place < end else [])]
    return found
