"""Registration of torch operations: unique names, vmap rules and autograd Functions."""

import torch


def operation(name: str) -> str:
    """A unique name for a new operation; layers of an earlier import of this file may still use the earlier one."""
    prefix, count = __name__.replace(".", "_"), 1
    namespace = prefix
    while hasattr(getattr(torch.ops, namespace), name):
        count += 1
        namespace = f"{prefix}_{count}"
    return f"{namespace}::{name}"


def own_name(name: str, used_names) -> str:
    """`name`, numbered if `used_names` contains it already, for example from an earlier import."""
    unique, count = name, 1
    while unique in used_names:
        count += 1
        unique = f"{name}_{count}"
    return unique


def surely(condition) -> bool:
    """Whether a condition on lengths holds; in traced code, whether it holds for all of them, so that none is fixed."""
    if torch.compiler.is_compiling():
        return torch.fx.experimental.symbolic_shapes.statically_known_true(condition)
    return condition


def is_plain(tensors) -> bool:
    """Whether nothing watches or transforms operations on these tensors, some of them None.

    What watches: tracing, torch.func, forward derivatives, modes of dispatch, subclasses of Tensor. Tensors on meta
    have no memory, and the memory of those with a negative bit has other values. Of several gradients at once
    (`is_grads_batched`) each tensor stands for a batch.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._ops._len_torch_dispatch_stack_pre_dispatch():
        return False
    if torch.autograd.forward_ad._current_level >= 0:
        return False
    plain, batched = (torch.Tensor, torch.nn.Parameter), torch._C._functorch.is_legacy_batchedtensor
    return all(x is None or (type(x) in plain and not x.is_meta and not x.is_neg() and not batched(x)) for x in tensors)


def for_each_gradient(backward, gradient: torch.Tensor) -> list[torch.Tensor]:
    """`backward` for each of several gradients at once, as `is_grads_batched` passes them in one tensor."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    gradients = [backward(single) for single in torch._remove_batch_dim(gradient, level, 0, 0)]
    return [torch._add_batch_dim(torch.stack(elements), 0, level) for elements in zip(*gradients, strict=True)]


def constant_in_traces(function):
    """`torch.compiler.assume_constant_result`, which imports torch._dynamo: a second, even if nothing is traced."""
    function._dynamo_marked_constant = True
    return function


@constant_in_traces
def exports_onnx() -> bool:
    """Whether `torch.onnx.export` traces: a program for ONNX has neither operations of this file nor all of torch."""
    return torch.onnx.is_in_onnx_export()


def largest_number(x: torch.Tensor) -> float:
    """The largest finite number of x's dtype; for ONNX, whose exporter rounds numbers to float32, at most of that."""
    bound = torch.finfo(x.dtype).max
    return min(bound, torch.finfo(torch.float32).max) if torch.compiler.is_compiling() and exports_onnx() else bound


def place_among(tensors: list, x) -> int:
    """The place of a tensor in a list, at whose end it is put if it is not there."""
    index = next((i for i, tensor in enumerate(tensors) if tensor is x), len(tensors))
    tensors += [x] if index == len(tensors) else []
    return index


def wanted_places(needs) -> list[int]:
    """The places of the arguments that need a gradient."""
    return [i for i, is_needed in enumerate(needs) if is_needed]


def gradients_at(gradients, wanted: list[int], count: int) -> list:
    """The gradients of `count` arguments, from those of the arguments at places `wanted`."""
    return [gradients[wanted.index(i)] if i in wanted else None for i in range(count)]


def asks_gradients(*tensors) -> bool:
    """Whether a call with these tensors, some of them None, is part of a graph."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def plain_gradients(function, operands, wanted, *gradients) -> list:
    """The gradients of the operands that are `wanted`, by the operations of `function`; they may have derivatives.

    For the backward of a Function. `gradients`: those of the results. An operand may depend on another one.
    """
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        views = [x.view_as(x) for x in operands]
        outs = function(*views)
        wanted_views = [x for x, is_wanted in zip(views, wanted, strict=True) if is_wanted]
        wanted_gradients = torch.autograd.grad(
            outs, wanted_views, gradients, create_graph=differentiable, materialize_grads=True
        )
    return [wanted_gradients[sum(wanted[:i])] if is_wanted else None for i, is_wanted in enumerate(wanted)]


def applied(function, *arguments):
    """`function.apply(*given)`; directly if nothing is transformed: torch's own inspects a signature at each call."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)


def element(arguments, dims, i: int) -> list:
    """Element i of the mapped arguments; lists of tensors are mapped entry by entry."""

    def at(argument, dim):
        if isinstance(dim, list | tuple):
            return element(argument, dim, i)
        return argument if dim is None else argument.select(dim, i)

    return list(map(at, arguments, dims))


def one_by_one(op):
    """A vmap rule that loops over the mapped dimension."""

    def mapped(info, dims, *arguments):
        outs = [op(*element(arguments, dims, i)) for i in range(info.batch_size)]
        if isinstance(outs[0], torch.Tensor):
            return torch.stack(outs), 0
        container = type(outs[0])
        return container(torch.stack(batch) for batch in zip(*outs, strict=True)), container(0 for _ in outs[0])

    return mapped


def batch_first(op):
    """A vmap rule for an operation with batch dimensions: the mapped dimension becomes the first of them."""

    def mapped(info, dims, *arguments):
        outs = op(*mapped_first(info, dims, arguments))
        return outs, 0 if isinstance(outs, torch.Tensor) else (0,) * len(outs)

    return mapped


def mapped_first(info, dims, arguments) -> list:
    """The arguments of a vmap rule, with the mapped dimension first in each tensor."""

    def first(x, dim):
        if not isinstance(x, torch.Tensor):
            return x
        return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)

    return list(map(first, arguments, dims))


def differentiable(op, keep, backward, mapped):
    """Gives an operation its backward and its vmap rule, made by `mapped`; returns its Function for eager mode."""
    op.register_autograd(backward, setup_context=keep)
    op.register_vmap(mapped(op))
    return eager(op, keep, backward)


def eager(op, keep, backward):
    """An autograd Function of an operation for eager mode, as transforms of torch.func require."""
    methods = {"forward": staticmethod(op), "setup_context": staticmethod(keep), "backward": staticmethod(backward)}
    return type("Eager", (torch.autograd.Function,), {"generate_vmap_rule": True, **methods})
