"""Operations of torch, and functions that they call by name: new names, and what vmap gives operations."""

import torch


def operation(name: str) -> str:
    """The full name of a new operation of torch: one that no earlier import of this file has, whose layers may live."""
    space, count = __name__.replace(".", "_"), 1
    own = space
    while hasattr(getattr(torch.ops, own), name):
        count += 1
        own = f"{space}_{count}"
    return f"{own}::{name}"


def own_name(name: str, known) -> str:
    """`name`, or where one of those `known` has it, as of an earlier import whose layers may live, with a number."""
    found, count = name, 1
    while found in known:
        count += 1
        found = f"{name}_{count}"
    return found


def element(arguments, dims, i: int) -> list:
    """Element i of the arguments that are mapped; lists of tensors are mapped one by one."""
    return [
        element(one, dim, i) if isinstance(dim, list | tuple) else one if dim is None else one.select(dim, i)
        for one, dim in zip(arguments, dims, strict=True)
    ]


def one_by_one(op):
    """The vmap of an operation: one element of the mapped dimension after another."""

    def mapped(info, dims, *arguments):
        found = [op(*element(arguments, dims, i)) for i in range(info.batch_size)]
        if isinstance(found[0], torch.Tensor):
            return torch.stack(found), 0
        kind = type(found[0])
        return kind(torch.stack(same) for same in zip(*found, strict=True)), kind(0 for _ in found[0])

    return mapped


def batch_first(op):
    """The vmap of an operation that takes any batch: one more dimension of it, tensors that lack it repeated."""

    def mapped(info, dims, *given):
        moved = [
            x
            if not isinstance(x, torch.Tensor)
            else x.movedim(dim, 0)
            if dim is not None
            else x.expand(info.batch_size, *x.shape)
            for x, dim in zip(given, dims, strict=True)
        ]
        found = op(*moved)
        return found, 0 if isinstance(found, torch.Tensor) else (0,) * len(found)

    return mapped


def eager(op, keep, backward):
    """An operation for code that runs as it is read, where the transforms of torch.func want a Function."""
    parts = {"forward": staticmethod(op), "setup_context": staticmethod(keep), "backward": staticmethod(backward)}
    return type("Eager", (torch.autograd.Function,), {"generate_vmap_rule": True, **parts})
