"""Launches without Triton's binding of arguments, which takes longer on the host than a short kernel on the GPU."""

import triton

from tensornet_attn.runtime.triton.configure import CONFIGS

MOST_KEPT = 1024  # configurations and launches
ALIGNED = 15  # Triton compiles kernels for addresses that are multiples of 16, and others for the rest


class KeptLaunch:
    """A kernel, its grid and all arguments but its tensors; `constants` include the compile options.

    A call has the same tensors as the first one except for their addresses. After a first call with aligned addresses,
    the compiled kernel is launched directly; unaligned ones, the interpreter and hooks of the kernel take Triton's way.
    """

    def __init__(self, kernel, grid: tuple[int, ...], constants: dict):
        self.kernel, self.grid, self.constants, self.compiled = kernel, (*grid, 1, 1)[:3], constants, None

    def __call__(self, tensors: dict) -> None:
        """Launches the kernel; a tensor may be None, in every call or in none."""
        if self.compiled is not None and not self.kernel.pre_run_hooks:
            values, bits = self.values.copy(), 0
            for position, x in zip(self.places, tensors.values(), strict=True):
                if x is not None:
                    values[position] = address = x.data_ptr()
                    bits |= address
            if not bits & ALIGNED:
                runtime, active, compiled = triton.knobs.runtime, triton.runtime.driver.active, self.compiled
                stream = active.get_current_stream(active.get_current_device())
                enter = runtime.launch_enter_hook
                metadata = None if enter is None else compiled.launch_metadata(self.grid, stream, *values)
                self.run(*self.grid, stream, *self.handles, metadata, enter, runtime.launch_exit_hook, *values)
                return
        compiled = self.kernel[self.grid](**tensors, **self.constants)
        addresses = [x.data_ptr() for x in tensors.values() if x is not None]
        if hasattr(compiled, "packed_metadata") and not any(address & ALIGNED for address in addresses):
            arguments, names = tensors | self.constants, self.kernel.arg_names
            self.places = [names.index(name) for name in tensors]
            self.values = [arguments[name] for name in names]
            for position in self.places:
                self.values[position] = None  # tensors are not kept
            self.run, self.handles = compiled.run, (compiled.function, compiled.packed_metadata)
            self.compiled = compiled  # last: another thread may look at it


def kept_launch(key: tuple, make):
    """The launch kept under `key`, which has all that it depends on; made by `make()` the first time."""
    launch = CONFIGS.get(key)
    if launch is None:
        keep_few()
        launch = CONFIGS[key] = make()
    return launch


def keep_few() -> None:
    """Empties CONFIGS if it has many entries, as calls of many lengths cause."""
    if len(CONFIGS) >= MOST_KEPT:
        CONFIGS.clear()
