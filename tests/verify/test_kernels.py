"""C++ libraries are compared with the reference before anything uses them: right ones once, wrong ones never run."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.errors import InputError
from tensornet_attn.plan.make import PLANS
from tensornet_attn.runtime import blockwise, cpp, native
from tensornet_attn.verify import kernels
from tensornet_attn.verify.before_use import plan_of_library
from tests.agreement import outcome
from tests.refusals import refusal

pytestmark = pytest.mark.skipif(bool(cpp.reason_against_cpp()), reason="there is no C++ compiler")
SMALL = "{name: NAME, extends: hard_fish, legs: {f: 12, g: head 2, h: head 3, d: 2}}"
# What a printer could get wrong: a part of the text, what stands there instead, what differs first, in which call.
WRONG = {
    "gradient": ("real(-1.0) * sums[", "real(-0.5) * sums[", "the gradient of 'K'", "n 67, m 261, batch 1"),
    "key_mask": (", key_seen, keys, 0)", ", nullptr, keys, 0)", "'y'", "a float mask, a key mask"),
    "second_tile": ("* key_room + start, key_room", "* key_room, key_room", "'y'", "n 67, m 261, batch 1"),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(cpp.CPP_MORE, "-O0")  # compiles in a fraction of the time
    monkeypatch.setattr(cpp, "CPP_LOADED", {})


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The dtypes in which plans are compared; never in the thread of the caller, whose modes would change results."""
    found: list[str] = []
    mismatch, caller = kernels.mismatch, threading.get_ident()

    def counted(plan: Any, dtype: torch.dtype) -> Any:
        assert threading.get_ident() != caller
        assert not torch.compiler.is_compiling()
        found.append(str(dtype))
        return mismatch(plan, dtype)

    monkeypatch.setattr(kernels, "mismatch", counted)
    return found


def small(name: str) -> ta.Design:
    return ta.load(SMALL.replace("NAME", name))


def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process would know: what is on the disk."""
    monkeypatch.setattr(cpp, "CPP_LOADED", {})


def test_a_library_is_compared_once_and_auto_takes_no_other(
    compared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    design, x = small("compared"), torch.randn(2, 9, 12)
    layer, plain = ta.compile(design, "cpp"), ta.compile(design)
    assert (layer.plan.backend, compared) == ("cpp", ["torch.float32"])
    (library,), (record,) = (list(cpp.cpp_folder().glob(f"*.{kind}")) for kind in ("so", "json"))
    assert json.loads(record.read_text())["reason"] == ""
    anew(monkeypatch)
    auto = ta.compile(design, n=4096)
    assert (auto.plan.backend, len(compared)) == ("cpp", 1)
    plain = ta.compile(design, "torch")
    for module in (auto, plain):
        module.load_state_dict(layer.state_dict())
    torch.testing.assert_close(outcome(auto, [x]), outcome(plain, [x]))
    record.unlink()  # as earlier versions left it
    anew(monkeypatch)
    assert ta.compile(design, n=4096).plan.backend == "torch"
    assert (ta.warm(design), len(compared)) == ([library], 2)
    assert ta.compile(design, n=4096).plan.backend == "cpp"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"check": 0}))
    assert ta.compile(design, n=4096).plan.backend == "torch"


def test_a_call_in_another_dtype_compares_what_it_compiles(compared: list[str]) -> None:
    layer = ta.compile(small("another_dtype"), "cpp").double()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=False):
        layer(torch.randn(2, 9, 12, dtype=torch.float64))
    with torch.inference_mode():
        layer(torch.randn(2, 9, 12, dtype=torch.float64))
    assert compared == ["torch.float32", "torch.float64"]


def test_tracing_compares_nothing(compared: list[str]) -> None:
    layer, x = ta.compile(small("traced"), "cpp").double(), torch.randn(2, 9, 12, dtype=torch.float64)
    traced = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y = traced(x)
    assert compared == ["torch.float32", "torch.float64"]
    torch.testing.assert_close(y, ta.verify(layer, x) and layer(x))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_library_is_reported_and_never_used(
    name: str, compared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, differs, sizes = WRONG[name]
    design, x = small(f"wrong_{name}"), torch.randn(2, 300, 12)
    wrongly_printed(monkeypatch, lambda text: text.replace(old, new))
    with pytest.warns(UserWarning, match=r"cannot run: kernels differ from the reference: .* Using 'torch' instead"):
        layer = ta.compile(design, "cpp")
    assert (layer.plan.backend, len(compared)) == ("torch", 1)
    (report,) = cpp.cpp_folder().glob("*.report.txt")
    said = report.read_text()
    assert f"{differs} differs by" in said.splitlines()[0]
    assert sizes in said.splitlines()[0]
    for word in (f"'{design.name}' on backend 'cpp'", ": A.of", f"torch {torch.__version__}", "A[h n m] = softmax"):
        assert word in said
    assert str(report) in layer.explain()
    plain = ta.compile(design, "torch")
    plain.load_state_dict(layer.state_dict())
    for got, want in zip(outcome(layer, [x]), outcome(plain, [x]), strict=True):
        assert torch.equal(got, want)
    anew(monkeypatch)  # the record says what was found
    assert ta.compile(design, n=4096).plan.backend == "torch"
    assert refusal(ta.compile, design, "cpp", strict=True).count(str(report)) == 1
    with pytest.raises(InputError, match="C\\+\\+ kernels cannot be used: kernels differ"):
        ta.warm(design)
    assert len(compared) == 1


def test_kernels_of_float_masks_are_compared(compared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a softmax that sums exponentials, which other calls do not run."""
    wrongly_printed(monkeypatch, lambda text: text.replace("log_add(to[j], ", "tl::maximum(to[j], "))
    with pytest.warns(UserWarning, match="kernels differ from the reference: .* a float mask"):
        assert ta.compile(ta.load("mgk", legs={"f": 12, "h": 2}), "cpp").plan.backend == "torch"


def wrongly_printed(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Prints other C++ from now on."""
    from tensornet_attn.kernels import native

    source = native.source

    def changed(*regions: Any) -> str:
        text = source(*regions)
        assert change(text) != text
        return change(text)

    monkeypatch.setattr(native, "source", changed)


def test_a_file_alone_uses_a_library_beside_its_record(compared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    design, x = small("in_a_file"), torch.randn(2, 9, 12)
    ran, run = list[str](), native.CppCall.run
    plain, source = ta.compile(design, "torch"), ta.emit_source(design, backend="cpp")

    def alone() -> list[Tensor]:
        """What the file computes in a process of its own, where nothing is loaded."""
        own: dict[str, Any] = {"__name__": "alone"}
        exec(compile(source, "alone.py", "exec"), own)
        monkeypatch.setattr(own["CppCall"], "run", lambda *rest: ran.append(rest[1]) or run(*rest))
        own["KEEP"] = blockwise.KEEP  # small calls run in kernels too
        module = own["InAFile"]()
        module.load_state_dict(plain.state_dict())
        return outcome(module, [x])

    def check(words: str | None) -> None:
        ran.clear()
        if words is None:
            found = alone()
        else:
            with pytest.warns(UserWarning, match=words) as said:
                found = alone()
            assert len(said) == 1
        assert bool(ran) == (words is None)
        for got, want in zip(found, outcome(plain, [x]), strict=True):
            torch.testing.assert_close(got, want)

    never = "so torch computes instead: none has been compared with the reference: run 'tensornet-attn warm'"
    check(never)
    assert not cpp.cpp_folder().exists()  # nothing is compiled that nothing compares
    ta.warm(design)
    check(None)
    (record,) = cpp.cpp_folder().glob("*.json")
    said = json.loads(record.read_text())
    record.write_text(json.dumps(said | {"reason": "kernels differ"}))
    check("so torch computes instead: kernels differ")
    for other in ({"library": "another"}, {"check": 0}):
        record.write_text(json.dumps(said | other))
        check(never)
    record.unlink()
    check(never)
    assert compared == ["torch.float32"]


def test_a_process_forgets_the_plans_of_modules_that_are_gone() -> None:
    layer = ta.compile(small("forgotten"), "cpp")
    (text,) = ta.compiler._native(layer.plan)
    plan = ref(layer.plan)
    copied = deepcopy(layer)
    assert plan_of_library(text) is not None
    del copied
    gc.collect()
    assert plan_of_library(text) is not None  # that of the layer, whichever came last
    del layer
    for cache in (PLANS, ta.compiler._sources):
        cache.clear()
    gc.collect()
    assert (plan(), plan_of_library(text)) == (None, None)


def test_a_wrong_library_of_a_call_leaves_the_call_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of verified kernels, in a dtype for which the compiler makes wrong ones."""
    wrongly_printed(monkeypatch, lambda text: text.replace("{ return std::exp(x); }", "{ return std::exp(1.01 * x); }"))
    layer, x = ta.compile(small("later"), "cpp").double(), torch.randn(2, 9, 12, dtype=torch.float64)
    assert layer.plan.backend == "cpp"
    with pytest.warns(UserWarning, match="float64 cannot be used, so torch computes instead: kernels differ"):
        y = layer(x)
    plain = ta.compile(layer.design, "reference", dtype=torch.float64)
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(y, plain(x))


def test_a_comparison_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(kernels, "mismatch", fails)
    with pytest.warns(UserWarning, match="kernels cannot be compared with the reference: MemoryError: no room"):
        assert ta.compile(small("failing"), "cpp").plan.backend == "torch"
    assert not [*cpp.cpp_folder().glob("*.json")]


def test_an_input_over_the_legs_of_one_with_a_default() -> None:
    """In a call without the keys' own input, as many keys as queries are drawn."""
    text = """
tensornet: 1
name: keyed
legs: {n: query, m: key, f: 12}
inputs: {x: n f, memory: {legs: m f, default: x}, weight: m}
diagram:
  A: {softmax: m, of: "x[n f] memory[m f] -> n m"}
  V: weight[m] memory[m f] -> m f
  y: A[n m] V[m f] -> n f
output: y
"""
    assert kernels.mismatch(ta.compile(text, "torch").plan, torch.float64) is None
    assert refusal(ta.compile(text), torch.randn(2, 13, 12), None, torch.randn(2, 9)) == (
        "keyed: input 'weight' has length 9 on leg 'm', input 'memory' has 13."
    )


def test_a_comparison_leaves_random_numbers_alone() -> None:
    plan = ta.compile(small("random"), "torch").plan
    torch.manual_seed(3)
    wanted = torch.randn(3)
    torch.manual_seed(3)
    assert kernels.mismatch(plan, torch.float32) is None
    assert torch.equal(torch.randn(3), wanted)


def test_processes_that_compile_at_once_agree(tmp_path: Path) -> None:
    text = f"import tensornet_attn as ta; print(ta.compile({SMALL.replace('NAME', 'at_once')!r}, 'cpp').plan.backend)"
    runs = [subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [run.communicate()[0].strip() for run in runs] == ["cpp", "cpp"]
    assert {path.suffix for path in (tmp_path / "tensornet-attn" / "cpp").iterdir()} == {".so", ".json"}
