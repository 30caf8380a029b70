"""Registration of torch operations: unique names, vmap rules and autograd Functions."""

import torch


def operation(name: str) -> str:
    """A unique name for a new operation; layers of an earlier import of this file may still use the earlier one."""
    space, count = __name__.replace(".", "_"), 1
    own = space
    while hasattr(getattr(torch.ops, own), name):
        count += 1
        own = f"{space}_{count}"
    return f"{own}::{name}"


def own_name(name: str, known) -> str:
    """`name`, numbered if `known` contains it already, for example from an earlier import."""
    found, count = name, 1
    while found in known:
        count += 1
        found = f"{name}_{count}"
    return found


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
    found = [backward(one) for one in torch._remove_batch_dim(gradient, level, 0, 0)]
    return [torch._add_batch_dim(torch.stack(same), 0, level) for same in zip(*found, strict=True)]


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
    most = torch.finfo(x.dtype).max
    return min(most, torch.finfo(torch.float32).max) if torch.compiler.is_compiling() and exports_onnx() else most


def asks_gradients(*tensors) -> bool:
    """Whether a call with these tensors, some of them None, is part of a graph."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def plain_gradients(function, operands, wanted, *gradients) -> list:
    """The gradients of the operands that are `wanted`, by the operations of `function`; they may have derivatives.

    For the backward of a Function. `gradients`: those of the results. An operand may depend on another one.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        own = [x.view_as(x) for x in operands]
        found = function(*own)
        asked = [x for x, one in zip(own, wanted, strict=True) if one]
        made = torch.autograd.grad(found, asked, gradients, create_graph=again, materialize_grads=True)
    return [made[sum(wanted[:i])] if one else None for i, one in enumerate(wanted)]


def applied(function, *given):
    """`function.apply(*given)`; directly if nothing is transformed: torch's own inspects a signature at each call."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*given)
    return super(torch.autograd.Function, function).apply(*given)


def element(arguments, dims, i: int) -> list:
    """Element i of the mapped arguments; lists of tensors are mapped entry by entry."""
    return [
        element(one, dim, i) if isinstance(dim, list | tuple) else one if dim is None else one.select(dim, i)
        for one, dim in zip(arguments, dims, strict=True)
    ]


def one_by_one(op):
    """A vmap rule that loops over the mapped dimension."""

    def mapped(info, dims, *arguments):
        found = [op(*element(arguments, dims, i)) for i in range(info.batch_size)]
        if isinstance(found[0], torch.Tensor):
            return torch.stack(found), 0
        kind = type(found[0])
        return kind(torch.stack(same) for same in zip(*found, strict=True)), kind(0 for _ in found[0])

    return mapped


def batch_first(op):
    """A vmap rule for an operation with batch dimensions: the mapped dimension becomes the first of them."""

    def mapped(info, dims, *given):
        found = op(*mapped_first(info, dims, given))
        return found, 0 if isinstance(found, torch.Tensor) else (0,) * len(found)

    return mapped


def mapped_first(info, dims, given) -> list:
    """The arguments of a vmap rule, with the mapped dimension first in each tensor."""
    return [
        x
        if not isinstance(x, torch.Tensor)
        else x.movedim(dim, 0)
        if dim is not None
        else x.expand(info.batch_size, *x.shape)
        for x, dim in zip(given, dims, strict=True)
    ]


def differentiable(op, keep, backward, mapped):
    """Gives an operation its backward and its vmap rule, made by `mapped`; returns its Function for eager mode."""
    op.register_autograd(backward, setup_context=keep)
    op.register_vmap(mapped(op))
    return eager(op, keep, backward)


def eager(op, keep, backward):
    """An autograd Function of an operation for eager mode, as transforms of torch.func require."""
    parts = {"forward": staticmethod(op), "setup_context": staticmethod(keep), "backward": staticmethod(backward)}
    return type("Eager", (torch.autograd.Function,), {"generate_vmap_rule": True, **parts})
