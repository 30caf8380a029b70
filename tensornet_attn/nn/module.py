"""The nn.Module of a compiled design: parameters by the YAML's names, a checked call, and what the compiler did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.call import Masks, Signature
from tensornet_attn.nn.decoder import Decoder
from tensornet_attn.nn.forward import CallSignature, named_class, plain_class
from tensornet_attn.nn.initial import initial, initial_
from tensornet_attn.nn.made import Arguments, Made, Result
from tensornet_attn.nn.notebook import html_of
from tensornet_attn.nn.offsets import Packed
from tensornet_attn.nn.packed import call_packed, call_with_cache
from tensornet_attn.nn.packing import Packing
from tensornet_attn.plan.model import Plan
from tensornet_attn.runtime.masks import both
from tensornet_attn.runtime.triton import target
from tensornet_attn.spec import Design

if TYPE_CHECKING:
    from tensornet_attn.nn.parallel import TensorParallel

Tensor = torch.Tensor


class CompiledDesign(nn.Module):
    """A design that runs.

    `module(x, ..., mask=, key_mask=, noise=, losses=)`: inputs in declared order, [batch..., legs]; the result is
    [batch..., legs of the output], with `losses=True` (result, losses by name). `design`, `plan` and `source` say what
    it is; `explain()` what was chosen and why; `capture` gives any step.
    """

    __signature__ = CallSignature()

    def __init__(
        self,
        design: Design,
        plan: Plan,
        make: Callable[[Design, Plan], Made],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        planned: Callable[[torch.device, torch.dtype], Plan] | None = None,
    ):
        """`planned`: the plan for another device, where that may be another one; a module that is moved takes it."""
        super().__init__()
        self.design, self.plan = design, plan
        self._make, self._planned = make, planned
        self._take(make(design, plan))
        self._sign()
        for tensor in plan.graph.tensors:
            if tensor.role == "weight":
                value = initial(tensor, plan.graph, device, dtype)
                self.register_parameter(tensor.name, nn.Parameter(value, requires_grad=not tensor.frozen))
            elif tensor.role == "state":
                self.register_buffer(tensor.name, initial(tensor, plan.graph, device, dtype))
        self._place = self._placed()

    def _take(self, made: Made) -> None:
        self.source, self._run, self._evaluate = made.source, made.run, made.evaluate
        for made_of_plan in ("_decodes", "_works"):
            self.__dict__.pop(made_of_plan, None)

    def _sign(self) -> None:
        """The call of the design, and the class that has it as the signature of its forward."""
        graph = self.plan.graph
        self._signature, self._packing = Signature.of(graph, self.plan.schedule), Packing.of(graph)
        held = tuple(tensor.name for tensor in graph.tensors if tensor.role in ("weight", "state"))
        self.__class__ = named_class(plain_class(type(self)), self._signature.inputs, held, self.source or graph.name)

    def _placed(self) -> tuple[torch.device, torch.dtype] | None:
        """The GPU that the weights are on, and their dtype; None anywhere else."""
        like = next((x for some in (self.parameters, self.buffers) for x in some(recurse=False)), None)
        return None if like is None or not target.on_gpu(like.device) else (like.device, like.dtype)

    def _apply(self, *given: Any, **options: Any) -> CompiledDesign:
        """What `to`, `cuda`, `bfloat16` and their like do; then the plan may be another one."""
        super()._apply(*given, **options)
        place = self._placed()
        if self._planned is not None and place != self._place:
            like = place or (torch.device("cpu"), torch.get_default_dtype())
            plan = self._planned(*like)
            if plan != self.plan:
                self.plan = plan
                self._take(self._make(self.design, plan))
                self._signature = Signature.of(plan.graph, plan.schedule)
        self._place = place
        return self

    def forward(
        self,
        *inputs: Tensor,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: Mapping[str, Tensor] | None = None,
        losses: bool = False,
        cache: Cache | None = None,
        cu_seqlens: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen: int | None = None,
        position_ids: Tensor | None = None,
        **named: Tensor,
    ) -> Result:
        """The output, [batch..., legs as written]; inputs by position in declared order, or by name.

        mask: [n, m], [batch..., n, m] or [batch..., other legs of the box, n, m], boolean (true = may look) or a float
        that is added. key_mask: [batch..., m], true = may look. noise: values by name, [batch..., legs]. losses: the
        result is (output, losses): the design's auxiliary losses by name, each averaged over the batch, a scalar, not
        weighted; `design.loss_weights` has the weights.

        cu_seqlens: documents packed into one row, [1, positions, ...], begin there, [documents + 1], int32; each is
        computed as by a call of its own. cu_seqlens_k: those of keys that are an input of their own, the others are
        then of queries alone, as cu_seqlens_q. max_seqlen: the longest document, which a compiled call needs.
        position_ids: [1, positions], that count from 0 in each document. Raises InputError.
        """
        if not isinstance(losses, bool):  # a design without losses may have an input of this name
            named, losses = self._signature.with_losses(named, losses), False
        packed = Packed(cu_seqlens, cu_seqlens_q, cu_seqlens_k, max_seqlen, position_ids)
        if self._signature.packed_names:
            packed, named = self._signature.without_inputs(packed, named)
        if named:
            inputs = self._signature.ordered(inputs, named)
        if packed.given:
            packed.refuse(self.design.name, mask=mask, noise=noise)
            if cache is None:
                return call_packed(self, packed, inputs, key_mask, losses)
            return call_with_cache(self, packed, inputs, key_mask, losses, cache)
        if cache is not None:
            return self._cached(cache, inputs, mask, key_mask, noise, losses)
        lengths = self._signature.check(inputs, mask, key_mask, noise)
        return self._run(self, Arguments(inputs, lengths, mask, key_mask, noise, losses))

    @property
    def mask_places(self) -> Masks:
        """Where masks act, and what can be added there."""
        return self._signature.masks

    def new_cache(
        self,
        batch: int | Sequence[int] | None = None,
        max_length: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        droppable: bool = False,
    ) -> Cache:
        """An empty cache for `module(x, cache=cache)`. Raises InputError where the design cannot decode, with the step.

        `max_length`: positions that it has room for from the first call on; without, it grows. `batch`: the sequences,
        a number or a shape; its tensors are then made at once, for chunks of a dtype and on a device: if not given,
        those of the weights. `droppable`: keys are cached before rotary embedding, so that `cache.keep_last` can drop
        the oldest.
        """
        name = self.design.name
        if max_length is not None and (type(max_length) is not int or max_length < 1):
            raise InputError(f"{name}: 'max_length' is {max_length}; give a number of positions, 1 or more.")
        cache = Cache(name, self._decoder(droppable).decoding, max_length, droppable)
        if batch is None:
            if dtype is not None or device is not None:
                raise InputError(f"{name}: dtype and device are of tensors that are made at once: give 'batch' too.")
            return cache
        shape = tuple(batch) if isinstance(batch, Sequence) else (batch,)
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in shape):
            raise InputError(f"{name}: 'batch' is {batch}; give a number of sequences, or a shape of such.")
        like = next(iter(self.state_dict().values()), torch.empty(0))
        dtype = like.dtype if dtype is None else dtype
        if not dtype.is_floating_point:
            raise InputError(f"{name}: dtype is {dtype}; give a floating point one.")
        cache.allocate(shape, dtype, like.device if device is None else torch.device(device))
        return cache

    def _decoder(self, droppable: bool) -> Decoder:
        decoders = self.__dict__.setdefault("_decodes", {})
        if droppable not in decoders:
            decoders[droppable] = Decoder(self.plan.graph, partial(self._make, self.design), self.plan, droppable)
        return decoders[droppable]

    def _cached(
        self,
        cache: Cache,
        inputs: tuple[Tensor, ...],
        mask: Tensor | None,
        key_mask: Tensor | None,
        noise: Mapping[str, Tensor] | None,
        losses: bool,
        shown: Tensor | None = None,
    ) -> Result:
        """A call with a cache: a chunk behind the positions that were seen; `shown`: its keys that are no padding."""
        name, decoder, signature = self.design.name, self._decoder(cache.droppable), self._signature
        plain = mask is None and key_mask is None and noise is None and shown is None and not losses
        if plain and decoder.repeats(self, cache, inputs):
            return decoder.repeated(self, cache, inputs[0])
        if noise is not None or losses:
            raise InputError(f"{name}: a call with a cache takes no 'noise' and no 'losses'.")
        if self.training and (self.plan.graph.updates or decoder.decoding.drawn):
            updated = [f"updates '{state}'" for state, _ in self.plan.graph.updates]
            drawn = [f"draws '{one}' for two parts of a cached call" for one in decoder.decoding.drawn]
            raise InputError(f"{name}: training {[*updated, *drawn][0]}: call .eval() first.")
        if mask is not None and decoder.states:
            state = decoder.states[0]
            raise InputError(f"{name}: a call with a cache takes no 'mask': '{state}' is one for all positions.")
        lengths = signature.check_cached(inputs, mask, key_mask, cache.length, decoder.decoding.memory)
        values = {one: value for (one, *_), value in zip(signature.inputs, inputs, strict=False) if value is not None}
        length = lengths.get(str(signature.key)) or cache.length + lengths[str(signature.query)]
        cache.check(name, decoder.decoding, signature.batch(inputs), next(iter(values.values())), length)
        own = cache.visible(shown, length)
        given = Arguments(inputs, lengths, mask, both(key_mask, own), None)
        if lengths[str(signature.query)] == 0:  # nothing is asked, and nothing is kept
            return self._run(self, given._replace(lengths=dict.fromkeys(lengths, 0), mask=None, key_mask=None))
        out = decoder.call(self, cache, values, given, lambda: self._run(self, given))
        cache.shown = own
        return out

    def reset_parameters(self) -> None:
        """Draws weights and states again, as construction did: with the same seed, dtype and device the same values."""
        for tensor in self.plan.graph.tensors:
            if tensor.role in ("weight", "state"):
                initial_(getattr(self, tensor.name), tensor, self.plan.graph)

    def explain(self) -> str:
        """What was chosen for each region and what was refused, with reasons."""
        return self.plan.explain()

    def capture(
        self,
        *inputs_and_step: Any,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: Mapping[str, Tensor] | None = None,
        **named: Tensor,
    ) -> Tensor:
        """The value of any step of the diagram, `module.capture(x, "A")`: [batch..., legs as written].

        Computed as the diagram is written, dense, with this module's weights. Raises InputError for an unknown name.
        """
        *given, step = inputs_and_step
        inputs = self._signature.ordered(tuple(given), named)
        graph = self.plan.graph
        known = [*graph.tensor, *(step.name for step in graph.steps)]
        if not isinstance(step, str) or step not in known:
            raise InputError(f"{graph.name}: there is no step '{step}'; {nearest(str(step), graph.step)}")
        lengths = self._signature.check(inputs, mask, key_mask, noise)
        tensors = leaves(self, inputs, noise)
        values = self._evaluate(
            graph, tensors, lengths=lengths, training=self.training, mask=mask, key_mask=key_mask, until=step
        )
        return values[step]

    def tp_plan(self, processes: int | None = None, leg: str | None = None) -> TensorParallel:
        """How the weights are split over processes, and where an all-reduce stands: for `parallelize_module`.

        Along the leg that leaves the least weights whole; `processes`: of the legs that divide by them. A `leg` may be
        given. Raises InputError, with what stands against each leg.
        """
        from tensornet_attn.nn.parallel import TensorParallel
        from tensornet_attn.plan.parallel import split_of

        return TensorParallel(split_of(self.plan.graph, processes, leg), self.plan.graph, CompiledDesign)

    def extra_repr(self) -> str:
        sizes = ", ".join(
            f"{leg} {size if size is not None else 'at run time'}" for leg, size in self.design.legs.items()
        )
        return f"{self.design.name}: {sizes}; backend {self.plan.backend}"

    def _repr_html_(self) -> str:
        """What notebooks show: the picture, as text without Graphviz, the plan, and the cost at its lengths."""
        return html_of(self.plan, self.design.about)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """The class of this module alone cannot be found by its name: a copy makes one of its own."""
        return object.__new__, (plain_class(type(self)),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """The design and the options, never code: what was generated is generated again."""
        state = self.__dict__.copy()
        for made in ("_run", "_evaluate", "source", "_signature", "_packing", "_decodes", "_works"):
            state.pop(made, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._take(self._make(self.design, self.plan))
        self._sign()


def leaves(module: CompiledDesign, inputs: tuple[Tensor, ...], noise: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Inputs, weights, states and given noise by name."""
    graph = module.plan.graph
    names = [tensor.name for tensor in graph.of_role("input")]
    tensors = {name: value for name, value in zip(names, inputs, strict=False) if value is not None}
    tensors |= {t.name: getattr(module, t.name) for t in graph.tensors if t.role in ("weight", "state")}
    return tensors | dict(noise or {})
