"""Every kernel written by hand compiles for two GPUs at its default configuration, in their registers and memory."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from tensornet_attn.cli.doctor import doctor
from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.runtime.triton.survey import DTYPES, FAMILIES, TARGETS, WIDTHS, Used, compiling, survey, tables

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="triton is for Linux alone")
KERNELS = {
    "linear attention": {
        "linear_sums",
        "sums_before",
        "linear_reads",
        "linear_reads_all",
        "row_products",
        "masked_reads",
    },
    "decaying scores": {"linear_sums", "sums_before", "linear_reads"},
    "delta rule": {
        "chunk_solutions",
        "delta_states",
        "linear_sums",
        "sums_before",
        "linear_reads",
        "row_products",
        "delta_gradients_end",
    },
    "delta rule with decay": {"states_between"},
    "grouped experts": {
        *("choose_entries", "choose_gradient", "expert_counts", "expert_order"),
        *("expert_products", "expert_joined", "expert_outers", "gated_rows", "gated_sums"),
    },
}
FITS = Used("one", "fp32", "CHUNK 64", 90, 4, 255, 64, 227 * 1024)


def check(family: str, targets: tuple[int, ...], widths: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    used = survey(family, targets, widths, dtypes)
    assert {one.kernel for one in used} == KERNELS[family]
    assert {one.target for one in used} == {*targets}
    assert [(one, one.reasons_against) for one in used if one.reasons_against] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_a_slice(family: str) -> None:
    check(family, (90,), (64,), (torch.bfloat16,))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_all(family: str, dtype: torch.dtype, target: int) -> None:
    check(family, (target,), WIDTHS, (dtype,))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_wide_keys_of_the_delta_rule(dtype: torch.dtype, target: int) -> None:
    check("delta rule", (target,), (256,), (dtype,))


def test_what_does_not_fit() -> None:
    assert FITS.reasons_against == []
    assert Used("one", "fp32", "CHUNK 64", 80, 4, 255, 3000, 170_000).reasons_against == [
        "3000 bytes per thread are outside registers; at most 2048 are allowed",
        "170000 bytes of shared memory are needed; 166912 are available",
    ]


def test_the_table() -> None:
    import triton

    assert tables({"linear attention": [FITS, replace(FITS, registers=3)]}).splitlines() == [
        f"With triton {triton.__version__}. Registers and stack (bytes) are per thread, shared memory (bytes) "
        "per program: the maximum over the variants with these tiles.",
        "A GPU has 166,912 bytes (sm_80) and 232,448 bytes (sm_90) of it per program.",
        "",
        "## Linear attention",
        "",
        "| kernel | tensors | tiles | target | warps | registers | stack | shared memory |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| `one` | fp32 | chunk 64 | sm_90 | 4 | 255 | 64 | 232,448 |",
    ]


def test_doctor_prints_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tensornet_attn.runtime.triton.survey.FAMILIES", {})
    doctor(kernels=True)
    assert capsys.readouterr().out == f"{tables({})}\n"


def test_doctor_wants_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPartError) as error:
        doctor(kernels=True)
    assert str(error.value) == "kernels need triton, which is not installed: run 'pip install triton' on Linux."


def test_the_interpreter_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensornet_attn.runtime.triton.survey.interpreting", lambda: True)
    with pytest.raises(InputError) as error, compiling(90):
        pass
    assert (
        str(error.value)
        == "the interpreter of triton does not compile kernels: unset TRITON_INTERPRET in a new process."
    )
