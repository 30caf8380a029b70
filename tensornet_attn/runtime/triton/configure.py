"""Tiles, warps and stages of a kernel: the first candidate that fits, by a model of a program's resources.

Plain Python that standalone files can contain. A configuration is the launch arguments of a kernel, `num_warps` and
`num_stages` included. Tuned configurations are in CHOICES and take precedence over the model.
"""

SHARED = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}  # KiB of shared memory per program
REGISTERS = 160  # maximum 32-bit values per thread; the others of 255 registers hold addresses and masks
CHOICES: dict[str, dict] = {}  # tuned configurations, by kernel and sizes
ASKED: dict[str, list] = {}  # the candidates of each launched kernel, by kernel and sizes
CONFIGS: dict = {}  # configurations of launched region kernels, and what their launches keep, by all they depend on


def choose(choices: dict[str, dict]) -> None:
    """Uses these configurations for later launches."""
    CHOICES.update(choices)
    CONFIGS.clear()


def target_of() -> int:
    """The architecture that kernels are compiled for, such as 90; the oldest supported one in the interpreter."""
    from triton import knobs
    from triton.runtime import driver

    return 80 if knobs.runtime.interpret else driver.active.get_current_target().arch


def interpreted() -> bool:
    """Whether kernels run in the interpreter."""
    from triton import knobs

    return knobs.runtime.interpret


def configured(kernel: str, sizes: tuple, candidates: list[dict], need, limits: list | tuple = ()) -> dict:
    """The tuned configuration of a kernel for the sizes it is specialised on, else the first candidate that fits.

    A tuned configuration must be one of the candidates, because the file is not trusted.
    """
    key = f"{kernel} {' '.join(map(str, sizes))}"
    ASKED[key] = candidates
    return CHOICES[key] if CHOICES.get(key) in candidates else first_fitting(candidates, need, target_of(), limits)


def first_fitting(candidates: list[dict], need, target: int, limits: list | tuple = ()) -> dict:
    """The first candidate that fits the target.

    If none fits, returns the last of those that fit shared memory and need the fewest registers per thread, else the
    last candidate. `need(**config)` returns the 32-bit values that a program holds, and its bytes of shared memory per
    stage. `limits`: for each candidate the maximum number of values per thread, and the share of shared memory that it
    may take; otherwise (REGISTERS, 1).
    """
    per_thread, room = {}, 1024 * SHARED.get(target, min(SHARED.values()))
    for number, config in enumerate(candidates):
        (numbers, staged), (max_values, share) = need(**config), limits[number] if limits else (REGISTERS, 1)
        if staged * config["num_stages"] <= room * share:
            per_thread[number] = numbers / (32 * config["num_warps"])
            if per_thread[number] <= max_values:
                return config
    return candidates[min(reversed(per_thread), key=per_thread.__getitem__, default=-1)]


def held_for(size: int) -> int:
    """32-bit registers per element of a tile; elements of 4 bytes or more are multiplied without tensor cores.

    `size`: bytes per element. The factor 4 is measured by compiling for sm_80 and sm_90.
    """
    return 1 if size < 4 else size


def padded(size: int, least: int = 16) -> int:
    """The smallest power of two that is at least `size` and `least`; tl.dot requires 16.

    >>> [padded(size) for size in (1, 16, 17, 100)]
    [16, 16, 32, 128]
    """
    return max(least, 1 << (max(1, size) - 1).bit_length())


def distinct(candidates: list[dict]) -> list[dict]:
    """The candidates without duplicates, which small sizes cause."""
    return [candidate for i, candidate in enumerate(candidates) if candidate not in candidates[:i]]
