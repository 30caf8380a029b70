"""What `compile -o` writes for every design, in a process without this package.

Values and gradients of the reference, and at one seed the weights of the compiled module. The files of codegen/ import
the runtime instead. For Triton, nothing else is different; a file that needs only torch has plain forms of functions.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from docs.generate.files import ROOT
from tensornet_attn.emit.functions import items, library
from tests.alone import Alone, results_alone
from tests.designs.case import N
from tests.designs.cases import ATTENTION, CASES, drawn, inputs_of, normal
from tests.shipped import asked_for

FILES = {path.stem: path for path in sorted((ROOT / "codegen").glob("*/*.py"))}
TRITON = {path.stem: path for path in sorted((ROOT / "codegen").glob("*/triton/*.py"))}
# Of kron, settings that speak of sizes and legs of distances, which are no arguments of the class: those of the file.
SHIPPED = ("mhsa_core", "thsa_elu", "thsa_square", "gemma2", "gemma2_local", "gemma3", "gemma3_local", "deberta_v2")
FEW = {"moa", "moa_sigmoid", "moa_regularised"}  # their settings choose more experts than the other tests have
MANY = {"head_gated": {"h": 6}, **{name: {"e": 9} for name in FEW}, "deepseek_moe": {"e": 16}}
MANY |= {"gpt_neox": {"d": 8}, "moonshine": {"d": 20}, "qwen3_next": {"d": 8}}  # of whose entries a share is turned


def legs_of(name: str) -> dict[str, int]:
    return {} if name in SHIPPED else CASES[name].legs | MANY.get(name, {})


def oracle(name: str) -> nn.Module:
    """The reference with the settings of the file, at the sizes of the other tests."""
    design = ta.load(name, legs=legs_of(name))
    module = drawn(ta.reference(design, dtype=torch.float64), positive=CASES[name].positive)
    if name in SHIPPED:  # weights of that many numbers are smaller ones
        module.load_state_dict({key: value / 8 for key, value in module.state_dict().items()})
    return module


def calls(name: str) -> list[tuple[list[Tensor], dict[str, Tensor]]]:
    """Inputs with one batch dimension, without any and with three; with key_mask; with both masks."""
    xs = inputs_of(name) if name not in SHIPPED else [normal(torch.Generator().manual_seed(1), 2, N, 512)]
    found: list[tuple[list[Tensor], dict[str, Tensor]]] = [
        (xs, {}),
        ([x[0] for x in xs], {}),
        ([torch.stack([x, -x])[:, None] for x in xs], {}),
    ]
    if name in ATTENTION:
        keys = torch.tensor([[True, False, True, True, False], [False] * N])
        found.append((xs, {"key_mask": keys}))
        if CASES[name].masks:
            mask = torch.rand(xs[0].shape[1], N, generator=torch.Generator().manual_seed(3)) < 0.6
            found.append((xs, {"key_mask": keys, "mask": mask}))
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Alone]:
    """What a process without the package computes with the files."""
    folder, cases = tmp_path_factory.mktemp("codegen"), {}
    for name in (name for name in FILES if name in asked_for(request)):
        module, path = oracle(name), folder / f"{name}.py"
        path.write_text(ta.emit_source(name), encoding="utf-8")
        legs = {leg: size for leg, size in module.design.legs.items() if size is not None}
        cases[name] = {"path": str(path), "legs": legs, "state": module.state_dict(), "calls": calls(name)}
    return results_alone(cases, folder)


def test_every_design_has_a_file() -> None:
    assert sorted(FILES) == ta.list_designs()


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_file_alone_has_all_that_it_reads(backend: str) -> None:
    """Of each design: functions of the library, with all that they read; on Triton, behind the committed texts."""
    known = library(plain=backend == "torch")
    for name, path in (FILES if backend == "torch" else TRITON).items():
        alone = dict(items(ta.emit_source(name, backend=backend)))
        committed = dict(items(path.read_text(encoding="utf-8")))
        if backend == "triton":
            texts = {key: item.text for key, item in alone.items()}
            assert {key: item.text for key, item in committed.items()}.items() <= texts.items(), name
        carried = alone.keys() - committed.keys()
        assert {key: alone[key].text for key in carried} == {key: known[key].text for key in carried}, name
        missing = {word for item in alone.values() for word in item.reads & known.keys()} - alone.keys()
        assert missing == set(), name


@pytest.mark.parametrize("name", FILES)
def test_values_and_gradients(name: str, results: dict[str, Alone]) -> None:
    module = oracle(name)
    learned = [p for p in module.parameters() if p.requires_grad]
    for found, (inputs, masks) in zip(results[name][1], calls(name), strict=True):
        xs = [x.requires_grad_() for x in inputs]
        y = module(*xs, **masks)
        wanted = [y.detach(), *torch.autograd.grad(y.square().sum(), [*xs, *learned], allow_unused=True)]
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", FILES)
def test_one_seed_gives_the_same_weights(name: str, results: dict[str, Alone]) -> None:
    torch.manual_seed(11)
    state = ta.compile(ta.load(name, legs=legs_of(name)), dtype=torch.float64).state_dict()
    found, _ = results[name]
    assert found.keys() == state.keys()
    for key, value in state.items():
        assert torch.equal(found[key], value), key
