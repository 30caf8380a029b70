"""The interpreter of triton with a newer numpy than it knows."""

from __future__ import annotations

from typing import Any


def mend_interpreter() -> None:
    """Lets kernels count with `range` in the interpreter of triton 3.6, where numpy is 2.4 or newer.

    A number of a kernel is an array of one entry there, of which numpy makes no int any more. Does nothing twice.
    """
    from triton.runtime import interpreter

    if getattr(interpreter, "mended", False):
        return
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor, interpreter.mended = patched, True
