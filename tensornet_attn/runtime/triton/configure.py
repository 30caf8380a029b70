"""Tiles, warps and stages of a kernel: the first of its candidates that fits, by a model of what a program holds.

Plain Python that emitted files carry. A configuration is what a kernel is launched with, `num_warps` and `num_stages`
among it. What was tuned on a device stands in CHOICES, and comes before what the model says.
"""

SHARED = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}  # KiB a program may have, by target
REGISTERS = 160  # 32-bit numbers of its own that a thread may hold: of 255, the rest is for addresses and masks
CHOICES: dict[str, dict] = {}  # tuned configurations, by kernel and sizes
ASKED: dict[str, list] = {}  # the candidates of each kernel that has been launched, by the same
CONFIGS: dict = {}  # what kernels of regions have been launched with, by what it was chosen for


def choose(choices: dict[str, dict]) -> None:
    """Lets kernels launch with these from now on."""
    CHOICES.update(choices)
    CONFIGS.clear()


def target_of() -> int:
    """The architecture that kernels are compiled for, 90 for capability 9.0; the oldest one in the interpreter."""
    from triton import knobs
    from triton.runtime import driver

    return 80 if knobs.runtime.interpret else driver.active.get_current_target().arch


def interpreted() -> bool:
    """Whether kernels run in the interpreter."""
    from triton import knobs

    return knobs.runtime.interpret


def configured(kernel: str, sizes: tuple, candidates: list[dict], need) -> dict:
    """The tuned configuration for a kernel and the sizes it is specialised on, else the first candidate that fits.

    What was tuned has to be one of the candidates: a file is not trusted with more.
    """
    key = f"{kernel} {' '.join(map(str, sizes))}"
    ASKED[key] = candidates
    return CHOICES[key] if CHOICES.get(key) in candidates else first_fitting(candidates, need, target_of())


def first_fitting(candidates: list[dict], need, target: int) -> dict:
    """The first candidate that fits the target; where none does, of those with room in shared memory the last one whose
    threads hold the fewest numbers, else the last.

    `need(**config)` gives the 32-bit numbers that a program holds at once, and its bytes of shared memory for one
    stage: every further stage has as many again.
    """
    held, room = {}, 1024 * SHARED.get(target, min(SHARED.values()))
    for number, config in enumerate(candidates):
        numbers, staged = need(**config)
        if staged * config["num_stages"] <= room:
            held[number] = numbers / (32 * config["num_warps"])
            if held[number] <= REGISTERS:
                return config
    return candidates[min(reversed(held), key=held.__getitem__, default=-1)]


def held_for(size: int) -> int:
    """32-bit registers for a number of a tile: wide ones are multiplied without tensor cores, from rows held whole.

    `size`: bytes of a number. The 4 is what compiling for sm_80 and sm_90 has shown.
    """
    return 1 if size < 4 else size


def padded(size: int, least: int = 16) -> int:
    """The power of two that holds so many; tl.dot takes no less than 16.

    >>> [padded(size) for size in (1, 16, 17, 100)]
    [16, 16, 32, 128]
    """
    return max(least, 1 << (max(1, size) - 1).bit_length())


def distinct(candidates: list[dict]) -> list[dict]:
    """The candidates without repetitions: small sizes make several the same."""
    return [one for i, one in enumerate(candidates) if one not in candidates[:i]]
