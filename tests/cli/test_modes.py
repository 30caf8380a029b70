"""No option is dropped in silence: what a mode does not read is refused, and what it reads changes its result."""

from __future__ import annotations

from itertools import combinations

import pytest
import typer

from tensornet_attn.cli.app import app
from tensornet_attn.cli.modes import MODES, name_of
from tests.cli.conftest import Run

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = {name: {name_of(one): one for one in command.params} for name, command in COMMANDS.items()}
REFUSED = [
    (command, mode, option)
    for command, modes in MODES.items()
    for mode in modes
    for option in sorted({name for read in modes.values() for name in read.split()} - set(modes[mode].split()))
    if option not in modes
]


def line(command: str, *options: str) -> list[str]:
    """A command line with values for the arguments and the given options; "" stands for none."""
    words = [command]
    for name, one in OPTIONS[command].items():
        if (one.param_type_name == "argument" and one.required) or name in options:
            flag = [] if one.param_type_name == "argument" else [max(one.opts, key=len)]
            words += flag + ([] if getattr(one, "is_flag", False) else ["4"])
    return words


@pytest.mark.parametrize(("command", "mode", "option"), REFUSED, ids=lambda value: value or "usual")
def test_an_option_of_another_mode_is_refused(run: Run, command: str, mode: str, option: str) -> None:
    outcome = run(*line(command, mode, option))
    assert (outcome.code, outcome.out) == (2, "")
    flag = "DESIGN" if option == "designs" else f"--{option}"
    assert (f"--{mode} does not use {flag}" if mode else f"{flag} is for --") in outcome.err


@pytest.mark.parametrize("command", MODES)
def test_modes_exclude_each_other(run: Run, command: str) -> None:
    for one, other in combinations(filter(None, MODES[command]), 2):
        outcome = run(*line(command, one, other))
        assert (outcome.code, outcome.out) == (2, "")
        assert "exclude each other; leave out all but one." in outcome.err
    named = {word for mode, read in MODES[command].items() for word in (mode, *read.split())} - {""}
    assert named <= {*OPTIONS[command]}


TALKING = ("talking_heads", "--legs", "f=16,h=2,g=2,e=2")
READ = {
    ("explain", *TALKING): {
        "backend": "reference",
        "workload": "decoding",
        "bucket": "decoding",
        "device": "h200",
        "n": "64",
        "m": "64",
        "batch": "3",
        "memory": "1KiB",
        "causal": "",
        "json": "",
        "rewrites": "",
        "decoding": "",
    },
    ("explain", *TALKING, "--backend", "inductor"): {"strict": ""},
    ("explain", *TALKING, "--backend", "reference"): {"linear-memory": ""},
    ("explain", "mla", "--causal", "--decoding"): {"legs": "f=32", "json": "", "no-causal": ""},
    ("explain", "thsa", "--order"): {"n": "8", "m": "8", "legs": "f=32"},
    ("explain", "skip_left", "--rewrites"): {"json": ""},
    ("compile", *TALKING): {
        "backend": "triton",
        "workload": "decoding",
        "bucket": "decoding",
        "device": "h200",
        "n": "8",
        "m": "8",
        "memory": "1KiB",
        "causal": "",
        "package": "",
    },
    ("compile", *TALKING, "--memory", "1GiB"): {"batch": "90000"},
    ("draw", "mla", "--causal", "--format", "dot"): {"cache": "", "theme": "dark", "plan": "", "cost": ""},
    ("draw", "mhsa", "--format", "dot", "--cost"): {"n": "8", "m": "8", "theme": "dark", "causal": ""},
    ("lattice", "mhsa"): {"format": "dot", "equal-sizes": "", "json": ""},
    ("lattice", "mhsa", "--json"): {"equal-sizes": ""},
    ("cost", "mhsa"): {
        "n": "8", "m": "8", "batch": "3", "dtype": "bfloat16", "causal": "", "legs": "f=32", "json": "",
        "against": "mqa", "beside": "mlp", "over": "n=8,16", "measure": "macs", "order": "written",
    },
    ("cost", "gqa", "--over", "n=8,16"): {
        "m": "8", "batch": "3", "dtype": "bfloat16", "legs": "f=64", "against": "mhsa", "beside": "mlp",
        "measure": "macs", "order": "written", "json": "", "plot": "-",
    },
}  # fmt: skip


@pytest.mark.parametrize("words", READ, ids=" ".join)
def test_an_option_that_is_accepted_changes_the_result(run: Run, words: tuple[str, ...]) -> None:
    usual = run(*words)
    assert usual.code == 0
    same = [
        option for option, value in READ[words].items() if run(*words, f"--{option}", *filter(None, [value])) == usual
    ]
    assert same == []


def test_a_page_and_json_do_not_both_go_to_standard_output(run: Run) -> None:
    outcome = run("cost", "mhsa", "--over", "n=8,16", "--plot", "-", "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--json and the file '-' both write to standard output; leave out one of them." in outcome.err
