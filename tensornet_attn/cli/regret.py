"""`bench --regret`: predicted and measured times of all candidates of the planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tensornet_attn.cli.output import print_json
from tensornet_attn.errors import InputError
from tensornet_attn.spec import Design

LENGTHS = (256, 1024, 4096)
MEMORY = 2.0  # GiB that a candidate may need


def measure(
    designs: Sequence[Design],
    lengths: Sequence[int],
    batch: int,
    causal: bool | None,
    seed: int,
    costs: str | None,
    threads: int | None,
    memory: float | None,
    output: str | None,
    as_json: bool,
    say: Callable[[str], None],
) -> None:
    """Measures the candidates of designs at lengths in both passes, and prints each decision and the summary.

    Plans are for `this` machine if it was measured, and otherwise for `cpu`, the shipped table; `costs` names another
    device. Rows are appended to `output`, and a run resumes from it.
    """
    import torch

    from tensornet_attn.bench.case import PASSES, Case
    from tensornet_attn.bench.regret import Regret, summary, text
    from tensornet_attn.cost.devices import device_named

    if threads is not None:
        torch.set_num_threads(threads)
    if costs is None:
        try:
            device = device_named("this")
        except InputError as error:
            say(f"plans are priced for 'cpu': {error}")
            device = device_named("cpu")
    else:
        device = device_named(costs)
    if device.table is not None and device.table.machine.threads != torch.get_num_threads():
        now, then = torch.get_num_threads(), device.table.machine.threads
        say(f"'{device.name}' was measured with {then} threads, and torch has {now} now: add --threads {then}.")
    cases = [
        (Case(design, n, batch, causal, seed=seed, costs=device), kind)
        for n in lengths or LENGTHS
        for design in designs
        for kind in PASSES
        if lengths or _fits(design, n, causal)
    ]
    for case, _ in cases:
        case.check()
    path = None if output is None else Path(output)
    limit = (MEMORY if memory is None else memory) * 2**30
    decisions = list(Regret(cases, path, say, limit).decisions())
    if as_json:
        print_json({"decisions": [decision.as_dict() for decision in decisions], "summary": summary(decisions)})
    else:
        print(text(decisions))


def _fits(design: Design, n: int, causal: bool | None) -> bool:
    """Whether a design takes sequences of this length."""
    from tensornet_attn.bench.case import Case

    try:
        Case(design, n, causal=causal).check()
    except InputError:
        return False
    return True
