"""The command `doctor`: versions, devices and missing optional dependencies."""

from __future__ import annotations

import shutil
import subprocess
from typing import Annotated, Any

from tensornet_attn.cli.options import Json, flag
from tensornet_attn.cli.output import print_json
from tensornet_attn.errors import InputError, MissingPartError

REQUIRED = ("torch", "pydantic", "networkx", "opt_einsum", "ruamel.yaml", "graphviz", "typer", "rich")


def doctor(
    as_json: Json = False,
    calibrate: Annotated[bool, flag("--calibrate", "Measure this CPU, for '--device this' of other commands.")] = False,
    kernels: Annotated[
        bool, flag("--kernels", "Compile the handwritten Triton kernels and list the resources they use.")
    ] = False,
) -> None:
    """Report versions, devices and missing dependencies."""
    if kernels:  # takes minutes, and needs no GPU
        from tensornet_attn.compiler import need_triton

        need_triton()
        from tensornet_attn.runtime.triton.survey import FAMILIES, survey, tables

        print(tables({family: survey(family) for family in FAMILIES}))
        return
    if calibrate:
        from tensornet_attn.cost.devices import remember

        try:
            from tensornet_attn.nn.calibrate import calibrate as measured
        except (ImportError, OSError) as error:
            raise MissingPartError(f"torch cannot be imported: {str(error).splitlines()[0]}") from None
        remember(measured())
    report = examine()
    if as_json:
        print_json(report)
        return
    for section, entries in report.items():
        print(section)
        width = max(map(len, entries))
        for name, value in entries.items():
            print(f"  {name:<{width}}  {value}")


def examine() -> dict[str, dict[str, str]]:
    """The report: by section, the findings by name."""
    import platform

    from tensornet_attn.version import __version__

    devices = _devices() | {"rates": _rates()}
    own = {"tensornet-attn": __version__, "python": platform.python_version(), "platform": platform.platform()}
    packages = {name: _version(name) or "missing: reinstall tensornet-attn" for name in REQUIRED}
    return {"versions": own | packages, "devices": devices, "optional parts": _optional()}


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
    found = {"cpu": f"{torch.get_num_threads()} threads"}
    for place in range(torch.cuda.device_count()):
        device: Any = torch.cuda.get_device_properties(place)
        memory = device.total_memory / 2**30
        found[f"cuda:{place}"] = f"{device.name}, {memory:.0f} GiB, capability {device.major}.{device.minor}"
    if not torch.cuda.device_count():
        found["cuda"] = "none: CPU only"
    return found


def _rates() -> str:
    """The measured rates of this machine, which price plans for `--device this`."""
    from tensornet_attn.cost.devices import THIS, device_named
    from tensornet_attn.cost.sizes import human

    try:
        this = device_named(THIS)
    except InputError as error:
        return str(error)
    return f"{human(this.rate)}FLOPs and {human(this.bandwidth or 0)}B per second, measured"


def _optional() -> dict[str, str]:
    def version(name: str, hint: str = "") -> str:
        return _version(name) or f"not installed{f': {hint}' * bool(hint)}"

    def extra(part: str, need: str) -> str:
        return f"'pip install \"tensornet-attn[{part}]\"'; {need}"

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
    return f"ready, with {cpp_compiler()}; {len([*cpp_folder().glob('*.so')])} in {cpp_folder()}"


def _dot(path: str) -> str:
    try:
        done = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    return (done.stderr or done.stdout).strip() or path
