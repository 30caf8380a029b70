"""What files refer to, the hashes of designs and the entries of state dicts, is as pinned: any change breaks files."""

from __future__ import annotations

import re

import pytest
from torch import nn

import tensornet_attn as ta
from tests.pins.pinned import Pinned, joined
from tests.pins.structure import causal_or_not
from tests.shipped import shipped

NAMES, MODELS = ta.list_designs(), ta.models.list_models()


@pytest.mark.parametrize("name", NAMES)
def test_hashes(name: str, pinned: Pinned) -> None:
    """Of the design, and of the diagram without and with a causal mask."""
    design = shipped(name)
    found = {"design": design.hash}
    found |= {"causal" if mask else "not causal": ta.hash_of(design, mask) for mask in causal_or_not(name)}
    pinned.check("hashes.txt", name, joined(found.items()))


@pytest.mark.parametrize("name", NAMES)
def test_state_dicts(name: str, pinned: Pinned) -> None:
    found = entries(ta.compile(shipped(name), "reference", device="meta"))
    pinned.check("state_dicts.txt", name, joined((line.split(" ", 1) for line in found), " "))


@pytest.mark.parametrize("backend", ["torch", "inductor", "triton"])
@pytest.mark.parametrize("name", ["mhsa", "epa", "gfish", "fmm2_rows", "transformer_xl", "mgk_em"])
@pytest.mark.filterwarnings("ignore:.*backend 'triton' cannot run:UserWarning")
def test_state_dicts_are_those_of_every_backend(name: str, backend: str) -> None:
    assert entries(ta.compile(name, backend, device="meta")) == entries(ta.compile(name, "reference", device="meta"))


@pytest.mark.parametrize("name", MODELS)
def test_state_dicts_of_models(name: str, pinned: Pinned) -> None:
    """Layers with equal entries share the lines."""
    model = ta.models.make(name, backend="reference", device="meta")
    found: dict[str, list[str]] = {}
    for line in entries(model):
        start, number, rest = re.fullmatch(r"(\D*?\.)?(\d+)?(.*)", line).groups()  # type: ignore[union-attr]
        found.setdefault(f"{start or ''}#{rest}" if number else line, []).append(number or "")
    lines = [line if numbers == [""] else f"{line}, # = {in_words(numbers)}" for line, numbers in found.items()]
    pinned.check("state_dicts_of_models.txt", name, lines)


@pytest.mark.parametrize("file", ["hashes.txt", "state_dicts.txt", "state_dicts_of_models.txt"])
def test_no_pin_without_a_subject(file: str, pinned: Pinned) -> None:
    pinned.only(file, MODELS if "models" in file else NAMES)


def entries(module: nn.Module) -> list[str]:
    """Names, shapes and dtypes of the state dict, in its order; which parameters are trained."""
    trained = {name for name, value in module.named_parameters(remove_duplicate=False) if value.requires_grad}
    return [
        f"{name} {'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype).removeprefix('torch.')}"
        f"{'' if name in trained else ', not trained'}"
        for name, value in module.state_dict().items()
    ]


def in_words(numbers: list[str]) -> str:
    """`0 to 17`, or each."""
    first, last = int(numbers[0]), int(numbers[-1])
    return f"{first} to {last}" if numbers == [str(i) for i in range(first, last + 1)] else " ".join(numbers)
