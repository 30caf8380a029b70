"""The nn.Module of a compiled design: parameters with their YAML names, a checked call, and `explain()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.nn.cache import Cache, check_cache
from tensornet_attn.nn.call import Masks, Signature, refuse_onnx, warn_of_zeros_and_ones
from tensornet_attn.nn.decoder import Decoder
from tensornet_attn.nn.executable import Arguments, Executable, Result
from tensornet_attn.nn.forward import CallSignature, named_class, plain_class
from tensornet_attn.nn.initial import initial, initial_, placed
from tensornet_attn.nn.notebook import html_of
from tensornet_attn.nn.offsets import Packed
from tensornet_attn.nn.packed import Packing, call_packed, call_with_cache
from tensornet_attn.plan.plan import Plan
from tensornet_attn.runtime.masks import both
from tensornet_attn.runtime.operations import exports_onnx
from tensornet_attn.runtime.triton import target
from tensornet_attn.spec import Design

if TYPE_CHECKING:
    from tensornet_attn.nn.parallel import TensorParallel

Tensor = torch.Tensor


class CompiledDesign(nn.Module):
    """A compiled design as an nn.Module; `ta.compile` returns it.

    Call `module(x, ..., mask=, key_mask=, noise=, losses=)` with the inputs in declared order, each [batch..., legs].
    It returns [batch..., legs of the output], or with `losses=True` the pair (output, losses by name). `design`, `plan`
    and `source` hold the design, the plan and the generated code. `explain()` reports the choices of the compiler, and
    `capture` returns the value of any step.
    """

    __signature__ = CallSignature()
    _alike: tuple[Any, ...] | None = None  # shape, place (dtype, device, autocast), lengths of the last plain call
    _mask_seen = False  # whether a float mask has been searched for zeros and ones

    def __init__(
        self,
        design: Design,
        plan: Plan,
        make: Callable[[Design, Plan], Executable],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        planned: Callable[[torch.device, torch.dtype], Plan] | None = None,
    ):
        """`planned`: returns the plan for another device and dtype; the module uses it when it is moved."""
        super().__init__()
        self.design, self.plan = design, plan
        self._make, self._planned = make, planned
        self._take(make(design, plan))
        self._sign()
        for tensor in plan.graph.tensors:
            if tensor.role == "weight":
                weight = initial(tensor, plan.graph, device, dtype)
                self.register_parameter(tensor.name, nn.Parameter(weight, requires_grad=not tensor.frozen))
            elif tensor.role == "state":
                self.register_buffer(tensor.name, initial(tensor, plan.graph, device, dtype))
        self._place = self._placed()

    def _take(self, executable: Executable) -> None:
        self.source, self._run, self._evaluate = executable.source, executable.run, executable.evaluate
        for attribute in ("_decodes", "_works"):
            self.__dict__.pop(attribute, None)

    def _sign(self) -> None:
        """Sets the signature of the call, and the class whose forward has this signature."""
        graph = self.plan.graph
        self._signature, self._packing = Signature.of(graph, self.plan.schedule), Packing.of(graph)
        stored = tuple(tensor.name for tensor in graph.tensors if tensor.role in ("weight", "state"))
        plain: Any = plain_class(type(self))
        kind: Any = named_class(plain, self._signature.inputs, stored, self.source or graph.name)
        self.__class__ = kind

    def _placed(self) -> tuple[torch.device, torch.dtype] | None:
        """Returns the GPU of the weights and their dtype, or None if the weights are elsewhere."""
        like = next((x for some in (self.parameters, self.buffers) for x in some(recurse=False)), None)
        return None if like is None or not target.on_gpu(like.device) else (like.device, like.dtype)

    def _apply(self, *arguments: Any, **options: Any) -> CompiledDesign:
        """Implements `to`, `cuda`, `bfloat16` and the like; the module plans again if the device or dtype changes."""
        untyped: Any = super()
        untyped._apply(*arguments, **options)
        self.__dict__.pop("_alike", None)
        placement = self._placed()
        if self._planned is not None and placement != self._place:
            like = placement or (torch.device("cpu"), torch.get_default_dtype())
            plan = self._planned(*like)
            if plan != self.plan:
                self.plan = plan
                self._take(self._make(self.design, plan))
                self._signature = Signature.of(plan.graph, plan.schedule)
        self._place = placement
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
        """Returns the output, [batch..., legs as written]. Give inputs by position in declared order, or by name.

        mask: [n, m], [batch..., n, m] or [batch..., other legs of the box, n, m]; boolean (True = visible) or a float
        that is added to the scores. key_mask: boolean [batch..., m], True = visible. noise: noise tensors by name,
        [batch..., legs]. losses: also return the auxiliary losses by name, scalars averaged over the batch and not
        weighted; `design.loss_weights` has their weights. cache: decode with a cache from `new_cache()`.

        Packed documents: cu_seqlens, int32 [documents + 1], holds the offsets of documents in one row [1, positions,
        ...]; the result equals one call per document. cu_seqlens_q and cu_seqlens_k are the offsets of queries and of
        keys, if keys are an input of their own. max_seqlen: length of the longest document, required under
        torch.compile. position_ids: [1, positions], counting from 0 in each document. Raises InputError if an argument
        does not fit.
        """
        if torch.compiler.is_compiling() and exports_onnx():
            refuse_onnx(self.plan.graph)
        if not isinstance(losses, bool):  # without declared losses, `losses` may be the name of an input
            named, losses = self._signature.with_losses(named, losses), False
        packed = None
        if not (cu_seqlens is cu_seqlens_q is cu_seqlens_k is position_ids is None) or max_seqlen is not None:
            packed = Packed(cu_seqlens, cu_seqlens_q, cu_seqlens_k, max_seqlen, position_ids)
        if packed is not None and self._signature.packed_names:
            packed, named = self._signature.without_inputs(packed, named)
        if named:
            inputs = self._signature.ordered(inputs, named, cache is not None and cache.length > 0)
        if packed is not None and packed.is_packed:
            packed.refuse(self.design.name, mask=mask, noise=noise)
            if cache is None:
                return call_packed(self, packed, inputs, key_mask, losses)
            return call_with_cache(self, packed, inputs, key_mask, losses, cache)
        if cache is not None:
            return self._cached(cache, inputs, mask, key_mask, noise, losses)
        lengths = self._checked(inputs, mask, key_mask, noise)
        return self._run(self, Arguments(inputs, lengths, mask, key_mask, noise, losses))

    def _checked(self, inputs: tuple[Tensor, ...], *others: Any) -> dict[str, int]:
        """`Signature.check`; a call with one input, like the one before, skips its checks."""
        plain = len(inputs) == 1 and type(inputs[0]) is Tensor and all(argument is None for argument in others)
        if not plain or torch.compiler.is_compiling():
            return self._checked_fully(inputs, *others)
        last_call, (x,) = self._alike, inputs
        placement = x.dtype, x.device, torch._C._is_any_autocast_enabled()
        if last_call is None or x.shape != last_call[0] or placement != last_call[1]:
            lengths = self._checked_fully(inputs, *others)
            last_call = self.__dict__["_alike"] = x.shape, placement, lengths
        return {**last_call[2]}

    def _checked_fully(
        self, inputs: tuple[Tensor, ...], mask: Tensor | None, key_mask: Tensor | None, noise: Any
    ) -> dict[str, int]:
        lengths = self._signature.check(inputs, mask, key_mask, noise)
        self._signature.check_place(self._parameters, inputs, mask=mask, key_mask=key_mask, **(noise or {}))
        if mask is not None and not torch.compiler.is_compiling() and not self._mask_seen:
            self.__dict__["_mask_seen"] = warn_of_zeros_and_ones(self.design.name, mask)
        return lengths

    @property
    def mask_places(self) -> Masks:
        """The boxes that masks act on, and whether a float mask can be added there."""
        return self._signature.masks

    def new_cache(
        self,
        batch: int | Sequence[int] | None = None,
        max_length: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        droppable: bool = False,
    ) -> Cache:
        """Returns an empty cache for `module(x, cache=cache)`.

        `max_length`: capacity in positions, allocated by the first call; a cache without it grows. `batch`: number of
        sequences, or a shape; all tensors are then allocated immediately, with `dtype` and on `device`, by default
        those of the weights. `droppable`: keys are cached before rotary embedding, so that `cache.keep_last` can drop
        the oldest positions. Raises InputError with the name of the step if the design cannot decode with a cache.
        """
        name = self.design.name
        if max_length is not None and (type(max_length) is not int or max_length < 1):
            raise InputError(f"{name}: 'max_length' is {max_length}; give a positive number of positions.")
        cache = Cache(name, self._decoder(droppable).decoding, max_length, droppable)
        if batch is None:
            if dtype is not None or device is not None:
                raise InputError(
                    f"{name}: 'dtype' and 'device' apply to tensors allocated immediately; give 'batch' too."
                )
            return cache
        shape = tuple(batch) if isinstance(batch, Sequence) else (batch,)
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in shape):
            raise InputError(f"{name}: 'batch' is {batch}; give a number of sequences or a shape.")
        like = next(iter(self.state_dict().values()), torch.empty(0))
        device, dtype = placed(name, like.device if device is None else device, dtype)
        cache.allocate(shape, like.dtype if dtype is None else dtype, device or like.device)
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
        chunk_visible: Tensor | None = None,
    ) -> Result:
        """Runs a chunk after the cached positions. `chunk_visible`: [batch, keys of the chunk], False = padding."""
        check_cache(self.design.name, cache)
        name, decoder, signature = self.design.name, self._decoder(cache.droppable), self._signature
        plain = mask is None and key_mask is None and noise is None and chunk_visible is None and not losses
        if plain and decoder.repeats(self, cache, inputs):
            return decoder.repeated(self, cache, inputs[0])
        if noise is not None or losses:
            raise InputError(f"{name}: a call with a cache accepts neither 'noise' nor 'losses'.")
        if self.training and (self.plan.graph.updates or decoder.decoding.drawn):
            updated = [f"updates '{state}'" for state, _ in self.plan.graph.updates]
            drawn = [f"draws '{noise_name}' for two parts of a cached call" for noise_name in decoder.decoding.drawn]
            raise InputError(f"{name}: training {[*updated, *drawn][0]}: call .eval() first.")
        if mask is not None and decoder.states:
            state = decoder.states[0]
            raise InputError(
                f"{name}: a call with a cache accepts no 'mask': '{state}' is a state, one value for all positions."
            )
        lengths = signature.check_cached(inputs, mask, key_mask, cache.length, decoder.decoding.memory)
        values = {
            input_name: tensor
            for (input_name, *_), tensor in zip(signature.inputs, inputs, strict=False)
            if tensor is not None
        }
        length = lengths.get(str(signature.key)) or cache.length + lengths[str(signature.query)]
        signature.check_place(self._parameters, inputs, mask=mask, key_mask=key_mask)
        cache.check(name, decoder.decoding, signature.batch(inputs), next(iter(values.values())), length)
        visible = cache.visible(chunk_visible, length)
        arguments = Arguments(inputs, lengths, mask, both(key_mask, visible), None)
        if lengths[str(signature.query)] == 0 and not decoder.decoding.memory:  # an empty chunk stores nothing
            all_inputs: Any = signature.with_empty(inputs)
            return self._run(
                self, Arguments(all_inputs, signature.check(all_inputs, None, None, None), None, None, None)
            )
        out = decoder.call(self, cache, values, arguments, lambda: self._run(self, arguments))
        cache.shown = visible
        return out

    def reset_parameters(self) -> None:
        """Initialises weights and states again; the same seed, dtype and device give the same values."""
        for tensor in self.plan.graph.tensors:
            if tensor.role in ("weight", "state"):
                initial_(getattr(self, tensor.name), tensor, self.plan.graph)

    def explain(self) -> str:
        """Returns the choices of the compiler for each region, and the refused alternatives with reasons."""
        return self.plan.explain()

    def capture(
        self,
        *inputs_and_step: Any,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        noise: Mapping[str, Tensor] | None = None,
        **named: Tensor,
    ) -> Tensor:
        """Returns the value of a step, [batch..., legs as written]: `module.capture(x, "A")`.

        Computes the diagram as written, dense, with the weights of this module. Raises InputError for an unknown step.
        """
        *positional, step = inputs_and_step or (None,)
        if not isinstance(step, str):
            received = "nothing" if step is None else f"a {type(step).__name__}"
            raise InputError(
                f"{self.design.name}: the last argument of capture is the name of a step, not {received}: "
                'e.g. capture(x, "A").'
            )
        inputs = self._signature.ordered(tuple(positional), named)
        graph = self.plan.graph
        names = [*graph.tensor, *(step.name for step in graph.steps)]
        if step not in names:
            raise InputError(f"{graph.name}: there is no step '{step}'; {nearest(step, graph.step)}")
        lengths = self._checked_fully(inputs, mask, key_mask, noise)
        tensors = leaves(self, inputs, noise)
        values = self._evaluate(
            graph, tensors, lengths=lengths, training=self.training, mask=mask, key_mask=key_mask, until=step
        )
        return values[step]

    def tp_plan(self, processes: int | None = None, leg: str | None = None) -> TensorParallel:
        """Returns how tensor parallelism splits the weights, and where an all-reduce is needed.

        Pass its `style` to `parallelize_module`. Without `leg`, selects the leg that leaves the fewest weights whole;
        `processes` restricts the choice to legs that it divides. Raises InputError with the reason for each refused
        leg.
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
        """Shown in notebooks: the picture (text if Graphviz is missing), the plan, and the cost at its lengths."""
        return html_of(self.plan, self.design.about)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickles by the plain class: the class of this one module cannot be imported by name."""
        return object.__new__, (plain_class(type(self)),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """The design and the options without generated code, which is generated again."""
        state = self.__dict__.copy()
        for attribute in ("_run", "_evaluate", "source", "_signature", "_packing", "_decodes", "_works", "_alike"):
            state.pop(attribute, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        untyped: Any = super()
        untyped.__setstate__(state)
        self._take(self._make(self.design, self.plan))
        self._sign()


def leaves(module: CompiledDesign, inputs: tuple[Tensor, ...], noise: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Inputs, weights, states and given noise by name."""
    graph = module.plan.graph
    names = [tensor.name for tensor in graph.of_role("input")]
    tensors = {name: tensor for name, tensor in zip(names, inputs, strict=False) if tensor is not None}
    tensors |= {t.name: getattr(module, t.name) for t in graph.tensors if t.role in ("weight", "state")}
    return tensors | dict(noise or {})
