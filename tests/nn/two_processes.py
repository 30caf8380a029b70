"""What designs and a model give when two processes share their weights: one process of a pair, started by a test.

`python -m tests.nn.two_processes FOLDER RANK NAME...`: process 0 writes FOLDER/results.pt, of these designs.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

import tensornet_attn as ta
from tensornet_attn.plan.parallel import split_of
from tests.designs.cases import CASES, drawn, inputs_of
from tests.models import tiny

LAYERS = [
    {"mixer": {"design": "gqa_rope", "legs": {"g": 2, "j": 2}}, "mlp": {"design": "mlp", "legs": {"l": 10}}},
    {
        "mixer": {"design": "epa", "legs": {"h": 2, "e": 3}},
        "mlp": {"design": "sigma_moe", "legs": {"e": 4, "l": 6}, "settings": {"k": 2}},
    },
]
MASKED = {"mhsa": ["h"], "gqa": ["g", "j"], "mgk": ["h"]}  # design: legs of its map


def results_of(module: nn.Module, inputs: list[Tensor], **see: Any) -> dict[str, Tensor]:
    """Output, losses, states, and gradients of inputs and weights of a training call, whole; noise has one seed."""
    module.train()
    inputs = [x.clone().requires_grad_() for x in inputs]
    torch.manual_seed(7)
    y, losses = module(*inputs, losses=True, **see)
    ((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() + sum(losses.values())).backward()
    found = {"y": y.detach(), **dict(module.named_buffers())}
    found |= {f"loss {name}": value for name, value in losses.items()}
    found |= {f"input {place}": x.grad for place, x in enumerate(inputs)}
    found |= {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
    return {name: whole(value) for name, value in found.items()}


def whole(value: Tensor) -> Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def compiled(name: str, backend: str = "torch", leg: str | None = None) -> nn.Module:
    """The design at its test size, but the leg that is split of an even size."""
    case = CASES[name]
    legs = dict(case.legs)
    with contextlib.suppress(ta.InputError):
        leg = split_of(ta.build(ta.load(name, legs=legs, settings=case.settings)), None, leg).leg
        legs |= {leg: legs[leg] - legs[leg] % 2 or 2} if leg in legs else {}
    return drawn(ta.compile(ta.load(name, legs=legs, settings=case.settings), backend, dtype=torch.float64))


def with_losses(backend: str = "torch") -> nn.Module:
    """A loss of every kind: of weights that are split, of the output, of what is whole in every process, and a sum."""
    diagram = {
        "decay": "Wo[h d f] Wo[h d f] ->",
        "bias": {"mean": "f", "of": {"mean": "n", "of": "y"}},
        "size": {"mean": "n", "of": "x[n f] x[n f] -> n"},
        "all": "decay[] + 2 * bias[] - size[] ->",
    }
    losses = {"decay": 0.1, "bias": 0.5, "size": 1, "sum": {"step": "all", "weight": 2}}
    design = {"tensornet": 1, "name": "with_losses", "extends": "mhsa", "diagram": diagram, "losses": losses}
    return drawn(ta.compile(ta.load(design, legs={"f": 12, "h": 2}), backend, dtype=torch.float64))


def mask_of(name: str) -> Tensor:
    """A float mask for each head: [batch, heads, n, m]."""
    case, generator = CASES[name], torch.Generator().manual_seed(3)
    sizes = [compiled(name).design.legs[leg] for leg in MASKED[name]]
    return torch.randn(2, *sizes, *2 * case.inputs[:1], generator=generator, dtype=torch.float64)


def splittable(name: str) -> bool:
    try:
        compiled(name).tp_plan(2)
    except ta.InputError:
        return False
    return True


def language_model() -> nn.Module:
    return tiny.spread(tiny.language(layers=LAYERS, positions="none"))


def trained(model: nn.Module) -> list[float]:
    """The losses of three steps of AdamW, the two kinds of weights in groups of their own."""
    weights = list(model.parameters())
    kinds = [[w for w in weights if isinstance(w, DTensor) is split] for split in (False, True)]
    optimizer = torch.optim.AdamW([{"params": kind} for kind in kinds if kind], lr=1e-2)
    losses, tokens = [], tiny.tokens(n=9)
    for _ in range(3):
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def split_results(mesh: DeviceMesh, names: list[str]) -> dict[str, Any]:
    """Everything that the tests compare with one process."""
    found: dict[str, Any] = {}
    for name in names:
        for backend in ("torch", "reference") if name in MASKED else ("torch",):
            module = compiled(name, backend)
            parallelize_module(module, mesh, module.tp_plan(2).style)
            see = {"mask": mask_of(name)} if name in MASKED else {}
            found[f"{name} {backend}"] = results_of(module, inputs_of(name), **see)
    module = compiled("mhsa")
    parallelize_module(module, mesh, module.tp_plan().style)
    found["capture"] = module.capture(*inputs_of("mhsa"), "A").detach()
    found["kept"] = {name: tuple(value.to_local().shape) for name, value in module.state_dict().items()}
    found["given"] = by_leg(mesh)
    module = with_losses()
    parallelize_module(module, mesh, module.tp_plan().style)
    found["with losses"] = results_of(module, inputs_of("mhsa"))
    model = language_model()
    parallelize_module(model, mesh, model.tp_plan())
    found["losses"] = trained(model)
    found["first values"] = first_values(mesh)
    return found


FIRST = {"f": 8, "r": 8, "s": 8, "h": 2}  # of thsa_elu, whose core starts as a Kronecker product


def first_values(mesh: DeviceMesh) -> dict[str, Tensor]:
    """Those of weights that are split while they have no memory, as large models are."""
    module = ta.compile(ta.load("thsa_elu", legs=FIRST), device="meta")
    fully_shard(module, mesh=mesh)
    module.to_empty(device="cpu")
    module.reset_parameters()
    return {name: whole(value) for name, value in module.state_dict().items()}


GIVEN = ("gqa j", "fish h", "talking_heads e", "talking_heads h")  # design and leg


def given_mask(name: str, leg: str) -> dict[str, Tensor]:
    """For talking heads a mask for each head of the softmax, which is split or not."""
    size = compiled(name, leg=leg).design.legs["h"] if name == "talking_heads" else 0
    mask = torch.randn(2, size or 0, 5, 5, generator=torch.Generator().manual_seed(4)).double()
    return {"mask": mask} if size else {}


def by_leg(mesh: DeviceMesh) -> dict[str, dict[str, Tensor]]:
    """Legs that only a caller would choose."""
    found = {}
    for given in GIVEN:
        name, leg = given.split()
        module = compiled(name, leg=leg)
        parallelize_module(module, mesh, module.tp_plan(leg=leg).style)
        found[given] = results_of(module, inputs_of(name), **given_mask(name, leg))
    return found


def main(folder: Path, rank: int, names: list[str]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    found = split_results(init_device_mesh("cpu", (2,)), names)
    if rank == 0:
        torch.save(found, folder / "results.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
