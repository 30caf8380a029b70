"""A text of simple sentences, made up: the same on every machine, for a first run without a file."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet_attn.tasks.chance import Stream

_THINGS = "cat dog bird horse king queen child farmer sailor teacher river stone tree house".split()
_KINDS = "old young small great quiet bright cold green happy strange".split()
_DEEDS = "see hear follow find remember paint leave greet know lift".split()
_PLACES = "in the garden,by the sea,on the hill,near the town,under the bridge,behind the wall".split(",")
_JOINTS = (". ", ". ", "; then ", ", and ", ".\n")
SENTENCES = 6000


def text() -> str:
    """About a quarter of a million characters; a verb agrees with its subject, some words before it."""
    bits = Stream("sentences", 1, "train", 0).at(range(SENTENCES)).below(0, 8, 2**20).tolist()
    return "".join(_sentence(*row) for row in bits)


def _sentence(many: int, kind: int, thing: int, place: int, deed: int, other: int, others: int, joint: int) -> str:
    subject = f"the {_pick(_KINDS, kind)} {_pick(_THINGS, thing)}{'s' * (many % 2)}"
    verb = f"{_pick(_DEEDS, deed)}{'s' * (1 - many % 2)}"
    spot = f" {_pick(_PLACES, place)}" if place % 3 else ""
    return f"{subject}{spot} {verb} the {_pick(_THINGS, other)}{'s' * (others % 2)}{_pick(_JOINTS, joint)}"


def _pick(words: Sequence[str], bits: int) -> str:
    return words[(bits >> 4) % len(words)]
