"""The emitted text of every shipped design, as a hash: a change of any says which designs and backends it concerns.

`python docs/results/compare_commits.py OLD . --text` prints what the texts gain and lose.
"""

from __future__ import annotations

from hashlib import sha256

import pytest

import tensornet_attn as ta
from tests.pins.pinned import Pinned, joined
from tests.scripts import script
from tests.shipped import shipped

NAMES = ta.list_designs()
EMITTED = script("results/compare_commits").EMITTED


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*backend .* cannot run:UserWarning")
def test_emitted_text(name: str, pinned: Pinned) -> None:
    texts = ((kind, ta.emit_source(shipped(name), **options)) for kind, options in EMITTED.items())
    pinned.check("emitted.txt", name, joined((kind, sha256(text.encode()).hexdigest()[:16]) for kind, text in texts))


def test_no_pin_without_a_subject(pinned: Pinned) -> None:
    pinned.only("emitted.txt", NAMES)
