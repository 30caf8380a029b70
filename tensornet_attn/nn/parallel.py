"""Tensor parallelism: a ParallelStyle that splits the weights of a compiled design over processes along a leg.

Each process holds its part of the weights and runs the diagram of that part. Inputs and outputs are equal in all
processes: outputs are summed in the forward, gradients of inputs and of unsplit weights in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from tensornet_attn.errors import InputError
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.wires import StepLeg
from tensornet_attn.nn.call import Signature
from tensornet_attn.nn.executable import Arguments, Executable, Result, Run
from tensornet_attn.plan.make import make_plan
from tensornet_attn.plan.parallel import SplitLeg
from tensornet_attn.plan.plan import Plan
from tensornet_attn.plan.shard import ProcessDiagram, shard_of
from tensornet_attn.spec import Design

Tensor = torch.Tensor
GONE = -1


@dataclass(frozen=True)
class TensorParallel:
    """A tensor-parallel plan from `module.tp_plan()`; pass its `style` to `parallelize_module`."""

    split: SplitLeg
    written: Graph
    kind: type[nn.Module]  # class of the module: CompiledDesign

    @property
    def leg(self) -> str:
        return self.split.leg

    @property
    def shards(self) -> dict[str, int]:
        """The dimension along which each weight is split, by name."""
        return dict(self.split.shards)

    @property
    def whole(self) -> tuple[str, ...]:
        """The weights that every process holds whole."""
        return self.split.whole

    @property
    def reduce(self) -> tuple[str, ...]:
        """The steps whose values are summed over the processes."""
        return self.split.reduce

    @property
    def style(self) -> ParallelStyle:
        """The ParallelStyle for `torch.distributed.tensor.parallel.parallelize_module`."""
        return LegParallel(self.split, self.written, self.kind)

    def to_text(self) -> str:
        return self.split.to_text()


class LegParallel(ParallelStyle):
    """Splits a compiled design along a leg. Raises InputError for another design, or if the mesh is not 1-D."""

    def __init__(self, split: SplitLeg, written: Graph, kind: type[nn.Module]):
        super().__init__()
        self.split, self.written = split, written
        self.kind: Any = kind

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, self.kind):
            raise InputError(f"this plan is for a compiled design; the module is a {type(module).__name__}.")
        if device_mesh.ndim != 1:
            raise InputError(
                f"{module.design.name}: the mesh has {device_mesh.ndim} dimensions; give a mesh of one dimension."
            )
        if module.plan.graph != self.written:
            raise InputError(
                f"this plan is for another version of '{self.written.name}' than this '{module.design.name}'."
            )
        make = SplitMake(module._make, self.written, self.split, shard_of(self.split, device_mesh.size()), device_mesh)
        shards = dict(self.split.shards)
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            placement = Shard(shards[name]) if name in shards else Replicate()
            distributed = distribute_tensor(tensor.detach(), device_mesh, [placement], src_data_rank=self.src_data_rank)
            if isinstance(tensor, nn.Parameter):
                module.register_parameter(name, nn.Parameter(distributed, requires_grad=tensor.requires_grad))
            else:
                module.register_buffer(name, distributed)
        module._make = make
        module._take(make(module.design, module.plan))
        return module


@dataclass(frozen=True)
class SplitMake:
    """Makes the run of one process from a plan of the whole module."""

    make: Callable[[Design, Plan], Executable]
    written: Graph
    split: SplitLeg
    process_diagram: ProcessDiagram
    mesh: DeviceMesh

    def __call__(self, design: Design, plan: Plan) -> Executable:
        if plan.graph != self.written:  # a part of the layer, as in a cache
            raise InputError(f"{design.name}: a design that is split over processes cannot use a cache.")
        part_plan = make_plan(self.process_diagram.graph, plan.backend, plan.target)
        executable = self.make(design, part_plan)
        return replace(executable, run=_run(self, part_plan, executable.run), evaluate=_gathering(executable.evaluate))

    def tensors(self, module: Any) -> dict[str, Tensor]:
        """The weights and states of this process, by name."""
        shards = dict(self.split.shards)
        tensors = {name: _local(tensor, name in shards) for name, tensor in module.named_parameters(recurse=False)}
        with torch.no_grad():  # a step that updates a state writes into its local part
            tensors |= {name: tensor.to_local() for name, tensor in module.named_buffers(recurse=False)}
        if self.process_diagram.chooser is not None:
            like = next(iter(tensors.values()))
            tensors[self.process_diagram.chooser] = self.chosen(
                torch.eye(self.split.size, dtype=like.dtype, device=like.device), 1
            )
        return tensors

    def chosen(self, tensor: Tensor, dim: int) -> Tensor:
        """The entries of this process along a dimension of the whole leg."""
        return tensor.chunk(self.mesh.size(), dim)[self.mesh.get_local_rank()]

    def own_mask(self, mask: Tensor | None, inputs: tuple[Tensor, ...], signature: Signature) -> Tensor | None:
        """The entries of this process of a mask [batch..., other legs, n, m]; unchanged if the leg is not in it."""
        batch = 0 if mask is None else len(signature.batch(inputs))
        if mask is None or mask.dim() in (2, batch + 2):
            return mask
        dims = {self._dim(name, tuple(leg for leg, _ in others)) for name, _, others in signature.masks.places}
        if len(dims) > 1 or GONE in dims:
            pair = f"{signature.query}, {signature.key}"
            form = f"give [{pair}] or [batch..., {pair}]."
            raise InputError(f"{self.split.graph.name}: this mask does not split along '{self.split.leg}'; {form}")
        (dim,) = dims
        return mask if dim is None or mask.shape[batch + dim] == 1 else self.chosen(mask, batch + dim)

    def _dim(self, box: str, legs: tuple[str, ...]) -> int | None:
        """The dimension of a box that is split. Returns None if none is, GONE if the box has lost these legs."""
        step = self.split.graph.step.get(box)
        op: Any = None if step is None else step.op
        sequences = {self.split.graph.query, self.split.graph.key}
        if op is None or {*op.of.legs} - sequences != {*legs}:
            return GONE
        return next((axis for axis, leg in enumerate(legs) if (box, StepLeg(leg)) in self.split.slots), None)


class PartOfModule:
    """Replaces the module in one process: weights and states by name.

    A class, because torch.compile does not trace `types.SimpleNamespace`.
    """

    def __init__(self, plan: Plan, training: bool, tensors: Mapping[str, Tensor]):
        self.plan, self.training = plan, training
        for name, tensor in tensors.items():
            setattr(self, name, tensor)


def _run(make: SplitMake, part_plan: Plan, run: Run) -> Run:
    """Runs the part of one process, between copying its inputs and summing its outputs."""

    def call(module: Any, arguments: Arguments) -> Result:
        mask = make.own_mask(_replicated(arguments.mask, make.mesh), arguments.inputs, module._signature)
        noise = arguments.noise and {name: _replicated(tensor, make.mesh) for name, tensor in arguments.noise.items()}
        module_part = PartOfModule(part_plan, module.training, make.tensors(module))
        entering = tuple(_replicated(tensor, make.mesh) for tensor in arguments.inputs)
        outputs: Any = run(module_part, arguments._replace(inputs=entering, mask=mask, noise=noise))
        if isinstance(outputs, Tensor):
            return _summed(outputs, make.mesh)
        alike, processes = make.split.alike, make.mesh.size()
        means = {name: loss / processes if name in alike else loss for name, loss in outputs[1].items()}
        return _summed(outputs[0], make.mesh), {name: _summed(mean, make.mesh) for name, mean in means.items()}

    return call


def _replicated(tensor: Any, mesh: DeviceMesh) -> Any:
    """A value equal in all processes, whose gradient is summed over them."""
    if tensor is None or not tensor.is_floating_point():
        return tensor
    return DTensor.from_local(tensor, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])


def _summed(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum of the values of all processes, in each of them."""
    return (
        DTensor.from_local(tensor, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()]).to_local()
    )


def _local(tensor: DTensor, sharded: bool) -> Tensor:
    """The local part of a weight. The gradient of an unsplit weight is summed over the processes."""
    if sharded:
        return tensor.to_local()
    return tensor.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def _gathering(evaluate: Callable[..., dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
    """Gathers the weights and evaluates single steps whole, in every process."""

    def evaluate_gathered(graph: Any, tensors: Mapping[str, Tensor], **options: Any) -> dict[str, Tensor]:
        values = {
            name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()
        }
        return evaluate(graph, values, **options)

    return evaluate_gathered
