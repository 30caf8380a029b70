"""The command `doctor`: versions, devices and missing optional dependencies."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensornet_attn.cli.options import Json, Text, flag
from tensornet_attn.cli.output import print_json
from tensornet_attn.errors import InputError, MissingPartError

if TYPE_CHECKING:
    from tensornet_attn.cost.rates import RateTable

REQUIRED = ("torch", "pydantic", "networkx", "opt_einsum", "ruamel.yaml", "graphviz", "platformdirs", "typer", "rich")


def doctor(
    as_json: Json = False,
    calibrate: Annotated[
        bool, flag("--calibrate", "Measure this CPU (20 seconds), for '--device this' of other commands.")
    ] = False,
    output: Annotated[
        Text, typer.Option("-o", "--output", metavar="FILE", help="With --calibrate: write the table to this file.")
    ] = None,
    kernels: Annotated[
        bool, flag("--kernels", "Compile the handwritten Triton kernels and list the resources they use.")
    ] = False,
) -> None:
    """Report versions, devices and missing dependencies."""
    if kernels:  # takes minutes, and needs no GPU
        from tensornet_attn.errors import need_triton

        need_triton()
        from tensornet_attn.runtime.triton.survey import FAMILIES, survey, tables

        print(tables({family: survey(family) for family in FAMILIES}))
        return
    if calibrate:
        from tensornet_attn.cost.rates import remember

        try:
            from tensornet_attn.bench import calibrate as bench
        except (ImportError, OSError) as error:
            raise MissingPartError(f"torch cannot be imported: {str(error).splitlines()[0]}") from None
        table = bench.calibrate()
        remember(table, None if output is None else Path(output))
        if kinds := bench.at_bounds(table):
            names = ", ".join(f"'{kind}'" for kind in kinds)
            typer.echo(
                f"warning: the efficiency of {names} is at its bound; measure again on an idle machine.", err=True
            )
    report = examine()
    if as_json:
        print_json(report)
        return
    for section, entries in report.items():
        print(section)
        width = max(map(len, entries))
        for name, finding in entries.items():
            print(f"  {name:<{width}}  {finding}")


def examine() -> dict[str, dict[str, str]]:
    """The report: by section, the findings by name."""
    import platform

    from tensornet_attn.version import __version__

    environment = {"tensornet-attn": __version__, "python": platform.python_version(), "platform": platform.platform()}
    packages = {name: _version(name) or "missing: reinstall tensornet-attn" for name in REQUIRED}
    return {"versions": environment | packages, "devices": _devices(), "rates": _rates(), "optional parts": _optional()}


def _version(name: str) -> str | None:
    from importlib import metadata  # imported here because it takes 14 ms

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, str]:
    """The devices of torch. This is the only part of the report that imports torch."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of torch does not load
        return {"torch": f"cannot be imported: {str(error).splitlines()[0]}"}
    devices = {"cpu": f"{torch.get_num_threads()} threads"}
    for index in range(torch.cuda.device_count()):
        device: Any = torch.cuda.get_device_properties(index)
        memory = device.total_memory / 2**30
        devices[f"cuda:{index}"] = f"{device.name}, {memory:.0f} GiB, capability {device.major}.{device.minor}"
    if not torch.cuda.device_count():
        devices["cuda"] = "none: CPU only"
    return devices


def _rates() -> dict[str, str]:
    """The tables of measured rates: of this machine, for `--device this`, and the shipped one, for `--device cpu`."""
    from tensornet_attn.cost.rates import calibration_file, of_this_machine, shipped

    default = f"those of 'cpu', the shipped table of {_machine(shipped())}, {shipped().measured}"
    try:
        this = of_this_machine()
    except InputError as error:
        return {"prices": default, "this": str(error), "cpu": _table(shipped())}
    prices = f"{default}; with '--device this' those of this machine, {this.measured}"
    findings = {"prices": prices, "this": _table(this), "file": str(calibration_file())}
    threads = _threads()
    if threads not in (None, this.machine.threads):
        findings["threads"] = f"measured with {this.machine.threads}, torch has {threads} now: times will differ"
    return findings | {"cpu": _table(shipped())}


def _threads() -> int | None:
    try:
        import torch
    except (ImportError, OSError):
        return None
    return int(torch.get_num_threads())


def _table(table: RateTable) -> str:
    """The main rates of a table, its machine and its age."""
    from datetime import date

    from tensornet_attn.cost.sizes import human

    days = (date.today() - date.fromisoformat(table.measured)).days
    return (
        f"{human(int(table.rate))}FLOPs, {human(int(table.exponentials))}exponentials and "
        f"{human(int(table.bandwidth))}B per second, {_machine(table)}; "
        f"measured on {table.measured}, {days} day{'s' * (days != 1)} ago, by '{table.command}'"
    )


def _machine(table: RateTable) -> str:
    machine = table.machine
    return f"{machine.threads} thread{'s' * (machine.threads != 1)} of {machine.processor}, torch {machine.torch}"


def _optional() -> dict[str, str]:
    def version(name: str, hint: str = "") -> str:
        return _version(name) or f"not installed{f': {hint}' * bool(hint)}"

    def extra(name: str, need: str) -> str:
        return f"'pip install \"tensornet-attn[{name}]\"'; {need}"

    lacking = [name for name in ("lightning-fabric", "safetensors", "tensorboard") if not _version(name)]
    dot = shutil.which("dot")
    drawing = f"no renderer: install Graphviz, or {extra('draw', 'dot and mmd files need none')}"
    if dot or _version("pygraphviz"):  # dot is preferred
        drawing = f"ready, with {'dot' if dot else 'pygraphviz'}"
    needed = extra("train", "for train, evaluate and sample")
    return {
        "C++ kernels": _cpp(),
        "triton": version("triton", "'pip install triton' on Linux; for GPU kernels"),
        "svg and png": drawing,
        "dot": _dot(dot) if dot else "not on the PATH",
        "pygraphviz": version("pygraphviz"),
        "transformers": version("transformers", extra("hf", "for Hugging Face models")),
        "training": f"missing {', '.join(lacking)}: {needed}" if lacking else "ready, with lightning-fabric",
        "sacrebleu": version("sacrebleu", extra("bleu", "for BLEU of translations")),
        "matplotlib": version("matplotlib", extra("plot", "for plots and the report of analyse")),
    }


def _cpp() -> str:
    """The compiler of C++ kernels, and how many are in the cache."""
    from tensornet_attn.runtime.cpp import cpp_compiler, cpp_folder, reason_against_cpp

    if reason := reason_against_cpp():
        return f"not compiled: {reason}; 'blockwise' functions of torch compute instead"
    count = len([*Path(str(cpp_folder())).glob("*.so")])
    return f"ready, with {' '.join(cpp_compiler())}; {count} in {cpp_folder()}"


def _dot(path: str) -> str:
    try:
        done = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    return (done.stderr or done.stdout).strip() or path
