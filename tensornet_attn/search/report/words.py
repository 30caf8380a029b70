"""How costs, qualities, tasks and arms are called on the page, and how their numbers are written."""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.search.study import Rung
from tensornet_attn.search.study_file import callable_task
from tensornet_attn.search.trial import Trial

UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
ARMS = {"evolution": "evolution", "random": "random search"}
NAMES = {
    "macs": "multiply-adds of a forward call",
    "parameters": "parameters",
    "activations": "floats kept for backward",
    "decoding_state": "floats of the decoding state",
    "latency": "seconds of a forward and a backward call",
}


def short(value: float) -> str:
    """
    >>> [short(value) for value in (1572864, 8192, 40_000_000, 576, 0.00125)]
    ['1.57M', '8.19k', '40M', '576', '0.00125']
    """
    for size, unit in UNITS:
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def exact(value: float | None) -> str:
    """
    >>> [exact(value) for value in (1572864, 0.00125, None)]
    ['1,572,864', '0.00125', '']
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def score(value: float | None) -> str:
    """
    >>> [score(value) for value in (0.98712, -1.25, 1.0, None)]
    ['0.9871', '-1.2500', '1.0000', '']
    """
    return "" if value is None else f"{value:.4f}"


def task(rung: Rung) -> str:
    """
    >>> task(Rung(task="mqar", options={"length": 64, "pairs": 4}))
    'mqar (length 64, pairs 4)'
    """
    options = ", ".join(f"{name} {value}" for name, value in rung.options.items())
    return f"{rung.task} ({options})" if options else rung.task


def measure(rung: Rung) -> str:
    """What the quality of a rung is; more is better. What a user's function returns has no name of its own."""
    if callable_task(rung.task):
        return "quality"
    return "accuracy" if rung.measure == "accuracy" else "minus the loss, nats"


def counts(rung: Rung) -> str:
    """
    >>> counts(Rung(task="mqar", score="mean"))
    'accuracy, mean of the rates'
    """
    return f"{measure(rung)}, {rung.score} of the rates" if len(rung.rates) > 1 else measure(rung)


def column(name: str) -> str:
    return name.replace("_", " ")


def origin(trial: Trial) -> str:
    """How a trial was proposed: `mutate of 12`."""
    parents = joined(str(slot) for slot in trial.parents)
    return f"{trial.how} of {parents}" if parents else trial.how


def joined(words: Iterable[str]) -> str:
    """
    >>> [joined(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])]
    ['', 'a', 'a and b', 'a, b and c']
    """
    *first, last = [*words] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def counted(count: int, word: str) -> str:
    """
    >>> counted(1, "design"), counted(1200, "design")
    ('1 design', '1,200 designs')
    """
    return f"{count:,} {word}{'s' * (count != 1)}"


def clock(seconds: float) -> str:
    """
    >>> [clock(seconds) for seconds in (4.2, 75, 5400)]
    ['4.2 s', '1 min 15 s', '1 h 30 min']
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def drop(value: float) -> str:
    """How much less the confirmed quality is than the one that the search has seen.

    >>> drop(0.0214), drop(-0.003)
    ('a drop of 0.0214', 'a rise of 0.0030')
    """
    return f"a {'drop' if value >= 0 else 'rise'} of {abs(value):.4f}"


def folder(trial: Trial) -> str:
    """The name of the folder of a design of the front: `062_mhsa_delta`."""
    name = next(line.removeprefix("name:").strip() for line in trial.design.splitlines() if line.startswith("name:"))
    return f"{trial.slot:03}_{name}"
