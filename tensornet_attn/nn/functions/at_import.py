"""What the decorators of these files need while a file is imported: it stands first in each."""

import torch


def operation(name: str) -> str:
    """The full name of a new operation of torch: one that no earlier import of this file has, whose layers may live."""
    space, count = __name__.replace(".", "_"), 1
    own = space
    while hasattr(getattr(torch.ops, own), name):
        count += 1
        own = f"{space}_{count}"
    return f"{own}::{name}"
