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


def mapped_first(info, dims, given) -> list:
    """The tensors with their mapped dimension first, those without one repeated; the size of a chunk as it is."""
    pairs = zip(given[:-1], dims[:-1], strict=True)
    return [x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in pairs] + [given[-1]]
