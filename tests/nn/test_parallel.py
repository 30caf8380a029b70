"""Weights split over two processes: outputs, states and gradients are those of one process, and refusals say why."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import parallelize_module

import tensornet_attn as ta
from tests.designs.cases import CASES, inputs_of
from tests.models import tiny
from tests.nn import two_processes as pair
from tests.nn.two_processes import compiled
from tests.refusals import refusal
from tests.shipped import asked_for

ROOT = Path(__file__).resolve().parents[2]
NAMES = "mhsa gqa mgk epa mla alibi mhsa_core transformer_xl mgk_em mlp sigma_moe_regularised".split()
KINDS = [f"{name} torch" for name in NAMES] + [f"{name} reference" for name in pair.MASKED]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    names = dict.fromkeys(kind.split()[0] for kind in KINDS if kind in asked_for(request, "kind"))
    return results(tmp_path_factory.mktemp("pair"), [*names])


def results(folder: Path, names: list[str]) -> dict[str, Any]:
    """What process 0 of two found."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.nn.two_processes", str(folder)]
    processes = [
        subprocess.Popen([*command, str(rank), *names], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return torch.load(folder / "results.pt")


def same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(
            got[name], value, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_give_what_one_gives(found: dict[str, Any], kind: str) -> None:
    name, backend = kind.split()
    see = {"mask": pair.mask_of(name)} if name in pair.MASKED else {}
    same(found[kind], pair.results_of(compiled(name, backend), inputs_of(name), **see))


@pytest.mark.slow
def test_so_do_all_designs_that_can_be_split(tmp_path: Path) -> None:
    names = [name for name in CASES if name not in NAMES and pair.splittable(name)]
    found = results(tmp_path, names)
    assert len(names) > 40
    for name in names:
        same(found[f"{name} torch"], pair.results_of(compiled(name), inputs_of(name)))


@pytest.mark.parametrize("given", pair.GIVEN)
def test_a_leg_that_is_asked_for(found: dict[str, Any], given: str) -> None:
    name, leg = given.split()
    module = compiled(name, leg=leg)
    same(found["given"][given], pair.results_of(module, inputs_of(name), **pair.given_mask(name, leg)))


def test_first_values_of_weights_that_are_split(found: dict[str, Any]) -> None:
    values, like = found["first values"], ta.compile(ta.load("thsa_elu", legs=pair.FIRST)).state_dict()
    torch.testing.assert_close(values.pop("C"), like.pop("C"))
    assert {name: value.shape for name, value in values.items()} == {name: value.shape for name, value in like.items()}
    assert all(0.1 < value.std() < 1 for value in values.values())
    assert all(value.abs().max() <= (6 / 16) ** 0.5 for value in values.values())


def test_losses_of_two_processes_are_those_of_one(found: dict[str, Any]) -> None:
    split = pair.with_losses().tp_plan().split
    assert (split.leg, split.alike, split.reduce) == ("h", ("size",), ("y", "decay", "bias", "size", "all"))
    same(found["with losses"], pair.results_of(pair.with_losses(), inputs_of("mhsa")))
    same(found["with losses"], pair.results_of(pair.with_losses("reference"), inputs_of("mhsa")))


def test_each_process_keeps_its_part_and_any_step_can_be_captured(found: dict[str, Any]) -> None:
    module = compiled("mhsa")
    torch.testing.assert_close(found["capture"], module.capture(*inputs_of("mhsa"), "A"))
    shards = module.tp_plan().shards
    for name, value in module.state_dict().items():
        shape = list(value.shape)
        shape[shards[name]] //= 2
        assert found["kept"][name] == tuple(shape)


def test_a_model_trains_alike(found: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(pair.trained(pair.language_model()), abs=1e-10)


def test_a_model_names_the_layer_that_cannot_be_split() -> None:
    layers = [{"mixer": {"design": "mhsa", "legs": {"h": 2}}}, {"mixer": {"design": "thsa"}}]
    model = ta.models.LanguageModel(vocabulary=9, length=8, width=8, layers=layers)
    assert refusal(model.tp_plan).startswith("layers.1.mixer.design: thsa: no leg can be split over processes: ")


@pytest.fixture
def alone() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_it_can_be_copied(alone: DeviceMesh) -> None:
    module, xs = compiled("mhsa"), inputs_of("mhsa")
    want = module(*xs)
    parallelize_module(module, alone, module.tp_plan().style)
    torch.testing.assert_close(copy.deepcopy(module)(*xs), want)


def test_it_has_no_cache(alone: DeviceMesh) -> None:
    module = ta.compile(ta.load("mhsa", legs={"f": 8, "h": 2}), "torch", causal=True).eval()
    parallelize_module(module, alone, module.tp_plan().style)
    with pytest.raises(ta.InputError, match=r"^mhsa: a design that is split over processes cannot use a cache.$"):
        module(torch.randn(1, 3, 8), cache=module.new_cache())


def test_a_style_is_for_its_own_design(alone: DeviceMesh) -> None:
    module, style = compiled("mhsa"), compiled("mqa").tp_plan().style
    wanted = "this plan is for another version of 'mqa' than this 'mhsa'."
    assert refusal(parallelize_module, module, alone, style) == wanted
    wanted = "this plan is for a compiled design; the module is a Linear."
    assert refusal(parallelize_module, torch.nn.Linear(2, 2), alone, style) == wanted
    wanted = "mhsa: the mesh has 2 dimensions; give a mesh of one dimension."
    assert refusal(parallelize_module, module, init_device_mesh("cpu", (1, 1)), module.tp_plan().style) == wanted


def test_a_mask_that_a_plan_took_apart_is_refused(alone: DeviceMesh) -> None:
    module = compiled("mhsa_core", "reference")
    parallelize_module(module, alone, module.tp_plan().style)
    size = module.design.legs["r"]
    wanted = "mhsa_core: this mask does not split along 'h'; give [n, m] or [batch..., n, m]."
    assert refusal(module, *inputs_of("mhsa_core"), mask=torch.zeros(2, size, 5, 5, dtype=torch.float64)) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mhsa", "mgk_em"])
def test_it_compiles_as_one_graph(alone: DeviceMesh, name: str) -> None:
    module, xs = compiled(name), inputs_of(name)
    want = module(*xs)
    parallelize_module(module, alone, module.tp_plan().style)
    torch.testing.assert_close(torch.compile(module, fullgraph=True)(*xs), want)


@pytest.mark.slow
def test_it_composes_with_fsdp() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "heads"))
    model = pair.language_model()
    tokens = tiny.tokens()
    want = model(tokens)
    parallelize_module(model, mesh["heads"], model.tp_plan())
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh["data"])
    got = model(tokens)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    assert model.layers[1].mixer.design.Wo.grad.placements == (Shard(0), Shard(0))
    dist.destroy_process_group()
