"""Checkpoints: a compiled design or a model in one file, as YAML text and weights. A checkpoint contains no code."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, Unpack

import torch

from tensornet_attn import compiler
from tensornet_attn.compiler import BackendOptions
from tensornet_attn.errors import InputError
from tensornet_attn.files import write_whole
from tensornet_attn.models.read import load

if TYPE_CHECKING:
    from tensornet_attn.models.base import Model
    from tensornet_attn.models.read import ModelSpec
    from tensornet_attn.nn.module import CompiledDesign
    from tensornet_attn.spec import Design

MARK = "tensornet_attn checkpoint"
VERSION = 1
PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a checkpoint.

    `causal` is the flag that the module was compiled with; `extra` maps names to further tensors. For a model, `model`
    is its description, and `design` and `causal` are None.
    """

    design: Design | None
    causal: bool | None
    state: dict[str, torch.Tensor]
    extra: dict[str, torch.Tensor]
    model: ModelSpec | None = None


def save(module: CompiledDesign | Model, path: PathLike, extra: Mapping[str, torch.Tensor] | None = None) -> None:
    """Saves a compiled design or a model as a checkpoint.

    The file of a design contains its YAML text with the resolved sizes, its causal flag and its state dict. The file of
    a model from `ta.models.make` contains its description with all its designs, and its state dict.

    `extra` maps names to further tensors; `tensornet-attn analyse` embeds bytes with `embedding`, of shape [256, f].
    The file is written atomically. Raises InputError if `module` is neither a compiled design nor a model, and OSError
    if the file cannot be written.

    >>> import tempfile, os, torch, tensornet_attn as ta
    >>> layer, x = ta.compile(ta.load("thsa", legs={"f": 8, "r": 6, "s": 4})), torch.randn(1, 3, 8)
    >>> path = os.path.join(tempfile.mkdtemp(), "layer.pt")
    >>> save(layer, path)
    >>> torch.equal(restore(path)(x), layer(x))
    True
    """
    from tensornet_attn.models.base import Model
    from tensornet_attn.nn.module import CompiledDesign

    if not isinstance(module, (CompiledDesign, Model)):
        raise InputError(f"save expects a module from ta.compile or ta.models.make, not a {type(module).__name__}.")
    wrong = [name for name, tensor in (extra or {}).items() if not isinstance(tensor, torch.Tensor)]
    if wrong:
        raise InputError(f"extra must hold tensors; '{wrong[0]}' has type {type((extra or {})[wrong[0]]).__name__}.")
    what: dict[str, Any]
    if isinstance(module, Model):
        what = {"model": module.to_yaml(whole=True)}
    else:
        what = {"design": module.design.to_yaml(), "causal": module.plan.graph.causal}
    content = {
        "format": MARK,
        "version": VERSION,
        **what,
        "state": dict(module.state_dict()),
        "extra": {name: tensor.detach() for name, tensor in (extra or {}).items()},
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_whole(Path(path), buffer.getvalue())


def restore(path: PathLike, causal: bool | None = None, **options: Unpack[BackendOptions]) -> CompiledDesign | Model:
    """Compiles the module of a checkpoint written by `save` and loads its weights. The module is in training mode.

    `causal` overrides the stored flag. `options` are those of `compile`; a model accepts `backend`, `device` and
    `dtype`. `dtype` defaults to that of the stored weights. Only tensors and text are read, never code. Raises
    InputError if the file is not a checkpoint, and DesignError if its design is invalid.
    """
    checkpoint = read_checkpoint(path)
    return restored(checkpoint, causal, str(path), **options)


def restored(
    checkpoint: Checkpoint, causal: bool | None, path: str, **options: Unpack[BackendOptions]
) -> CompiledDesign | Model:
    """The module of a checkpoint that `read_checkpoint` returned; `path` is its name in messages."""
    floats = [tensor.dtype for tensor in checkpoint.state.values() if tensor.is_floating_point()]
    options.setdefault("dtype", floats[0] if floats else None)
    module = _module(checkpoint, causal, path, options)
    try:
        module.load_state_dict(checkpoint.state)
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n\t", 1)[-1].split())
        what = (
            f"design '{checkpoint.design.name}'"
            if checkpoint.design is not None
            else f"model '{checkpoint.model.name}'"  # type: ignore[union-attr]
        )
        raise InputError(f"'{path}': the weights do not match its {what}: {reason}") from error
    return module


def _module(checkpoint: Checkpoint, causal: bool | None, path: str, options: BackendOptions) -> CompiledDesign | Model:
    """The module with freshly initialised weights."""
    if checkpoint.design is None:
        from tensornet_attn.models.kinds import MakeOptions, make

        for name in options:
            if name not in MakeOptions.__annotations__:
                raise InputError(f"'{path}' holds a model, but '{name}' is an option of single designs: remove it.")
        if causal is not None:
            raise InputError(f"'{path}' holds a model, and its description sets causal: remove causal=.")
        return make(checkpoint.model, **options)  # type: ignore[arg-type]
    causal = checkpoint.causal if causal is None else causal
    return compiler.compile(
        checkpoint.design, causal=None if causal == bool(checkpoint.design.causal) else causal, **options
    )


def read_checkpoint(path: PathLike) -> Checkpoint:
    """Reads a checkpoint, with its tensors on the CPU. Raises InputError if the file is not a checkpoint."""
    if not os.path.isfile(path):
        raise InputError(f"cannot read '{os.fspath(path)}': the file does not exist.")
    content: Any = _content(path)
    if not isinstance(content, dict) or content.get("format") != MARK:
        raise _no_checkpoint(path, "it is a PyTorch file with other content.")
    if content.get("version") != VERSION:
        raise _no_checkpoint(path, f"its version is {content.get('version')!r}; this package reads {VERSION}.")
    diagram, causal, state, extra = (content.get(key) for key in ("design", "causal", "state", "extra"))
    if isinstance(content.get("model"), str) and _tensors(state) and _tensors(extra):
        return Checkpoint(None, None, state, extra, load(content["model"] + "\n"))
    if not (isinstance(diagram, str) and isinstance(causal, bool) and _tensors(state) and _tensors(extra)):
        raise _no_checkpoint(path, "its design, causal flag, state or extra entries are missing or have a wrong type.")
    design = compiler.load(diagram + "\n")  # with a line break it is text, never a file name
    return Checkpoint(design, causal, state, extra)


def is_checkpoint(path: PathLike) -> bool:
    """Whether a file is a zip archive, the format that torch writes. Does not check its content."""
    return os.path.isfile(path) and zipfile.is_zipfile(path)


def _content(path: PathLike) -> Any:
    if not is_checkpoint(path):
        raise _no_checkpoint(path, "it is not a PyTorch file.")
    try:
        with open(path, "rb") as file:  # torch reads a path that ends in .safetensors as another format
            return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises many types, for broken archives and for objects it refuses to unpickle
        raise _no_checkpoint(path, "torch cannot read it, or it holds more than tensors and text.") from error


def _tensors(candidate: Any) -> TypeGuard[dict[str, torch.Tensor]]:
    return isinstance(candidate, dict) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in candidate.items()
    )


def _no_checkpoint(path: PathLike, reason: str) -> InputError:
    return InputError(f"'{os.fspath(path)}' is not a checkpoint written by ta.save: {reason}")
