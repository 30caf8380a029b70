"""Launches without Triton's binding of arguments, which takes longer on the host than a short kernel on the GPU."""

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
        addresses = {name: x.data_ptr() for name, x in tensors.items() if x is not None}
        aligned = not any(address & ALIGNED for address in addresses.values())
        if self.compiled is not None and aligned and not self.kernel.pre_run_hooks:
            values = self.values.copy()
            for place, address in zip(self.places, addresses.values(), strict=True):
                values[place] = address
            self.compiled(*values)
            return
        made = self.kernel[self.grid](**tensors, **self.constants)
        if aligned and hasattr(made, "packed_metadata"):
            given, names = tensors | self.constants, self.kernel.arg_names
            self.places = [names.index(name) for name in addresses]
            self.values = [None if name in addresses else given[name] for name in names]
            self.compiled = made[self.grid]


def kept_launch(key: tuple, make) -> KeptLaunch:
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
