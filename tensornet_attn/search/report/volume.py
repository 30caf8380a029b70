"""The hypervolume of each arm over its evaluations: what evolution gains on random search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensornet_attn.search.report import scale, words
from tensornet_attn.search.report.axes import Axes, drawing, mark, steps, text

WIDTH, HEIGHT = 1120.0, 320.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 1000.0, 36.0, 262.0
LETTERS = 15.0  # between the words at the ends of two lines


def volume(volumes: Mapping[str, Sequence[float]]) -> str:
    """A line an arm, from no evaluation on."""
    longest = max((len(own) for own in volumes.values()), default=0)
    axes = Axes(
        scale.linear([0.0, float(max(1, longest))], LEFT, RIGHT, zero=True),
        scale.linear([value for own in volumes.values() for value in own], BOTTOM, TOP, zero=True),
    )
    whole = [tick for tick in axes.x.ticks if tick == int(tick)]
    axes = Axes(scale.Scale(axes.x.measure, axes.x.low, axes.x.high, LEFT, RIGHT, tuple(whole)), axes.y)
    pieces = [axes.frame("different designs that an arm has evaluated", "hypervolume", "{:.0f}".format, "{:g}".format)]
    ends = _ends(axes, {arm: own for arm, own in volumes.items() if own})
    for arm, own in volumes.items():
        corners = [(axes.x.at(place), axes.y.at(value)) for place, value in enumerate((0.0, *own))]
        pieces.append(steps(corners, f"best {arm}"))
        if own:
            x, y = corners[-1]
            told = text(RIGHT + 12, ends[arm] + 4, f"{arm} {own[-1]:.3f}", "label")
            pieces.append(f'<g class="{arm}">{mark(arm, x, y)}</g>{told}')
    return drawing(WIDTH, HEIGHT, pieces, "hypervolume over evaluations")


def _ends(axes: Axes, volumes: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """How high the words of each line stand: at its end, moved down where two would run into each other."""
    found: dict[str, float] = {}
    last = float("-inf")
    for arm in sorted(volumes, key=lambda arm: axes.y.at(volumes[arm][-1])):
        last = max(axes.y.at(volumes[arm][-1]), last + LETTERS)
        found[arm] = last
    return found


def lead(volumes: Mapping[str, Sequence[float]]) -> str:
    """How the arms compare, in a sentence.

    >>> lead({"evolution": [0.1, 0.5, 0.6], "random": [0.2, 0.3, 0.4]})
    'Evolution ends at 0.600 and random search at 0.400, which evolution had after 2 of its 3 designs.'
    """
    ends = {arm: own[-1] for arm, own in volumes.items() if own}
    first, *others = sorted(ends, key=lambda arm: -ends[arm]) or [""]
    told = f"{words.ARMS.get(first, 'nothing').capitalize()} ends at {ends.get(first, 0.0):.3f}"
    if not others or ends[first] == ends[others[0]]:
        return f"{told}{f', and so does {words.ARMS[others[0]]}' if others else ''}."
    place = next(place for place, value in enumerate(volumes[first], 1) if value >= ends[others[0]])
    when = f"which {words.ARMS[first]} had after {place} of its {len(volumes[first])} designs"
    return f"{told} and {words.ARMS[others[0]]} at {ends[others[0]]:.3f}, {when}."
