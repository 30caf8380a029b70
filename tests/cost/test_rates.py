"""Tables of measured rates: a file that is checked, the shipped one, and that of this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

import tensornet_attn as ta
from tensornet_attn.cost import rates
from tensornet_attn.cost.devices import device_named, device_of
from tensornet_attn.cost.rates import calibration_file, from_dict, machine, of_this_machine, remember, shipped
from tensornet_attn.runtime.cpp import cpp_folder
from tests.refusals import refusal


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def mine() -> rates.RateTable:
    return replace(shipped(), machine=machine(1))


def test_the_shipped_table_names_its_machine_and_its_command() -> None:
    table = shipped()
    assert table.command == "tensornet-attn doctor --calibrate"
    assert table.machine.threads == 1
    assert {"product", "attention", "causal attention", "masked attention", "blockwise", "linear"} <= {
        one.kind for one in table.efficiency
    }
    assert from_dict(json.loads(json.dumps(table.as_dict()))) == table
    assert device_named("cpu").rates is table


def test_only_tensors_that_the_c_library_does_not_keep_get_new_pages() -> None:
    table = replace(shipped(), passes=((2**20, 8e10), (rates.KEPT, 4e10), (2**25, 5e9)))
    assert table.of_pages(rates.KEPT) == 0
    assert table.pass_rate(2**26) == pytest.approx(4e10)
    assert table.of_pages(2**26) == pytest.approx(3 * 2**26 * (1 / 5e9 - 1 / 4e10))


def test_attention_of_a_number_of_queries_between_measured_ones() -> None:
    pairs = (rates.Pair(32, 64, 4e-9, 1.2e-8), rates.Pair(512, 64, 1e-9, 3e-9))
    table = replace(shipped(), attention=pairs)
    found = [table.of_pair(queries, 64, False) for queries in (1, 32, 128, 512, 4096)]
    assert found == pytest.approx([4e-9, 4e-9, 2e-9, 1e-9, 1e-9])
    assert table.of_pair(512, 128, True) == pytest.approx(6e-9)


def test_a_table_of_this_machine_is_remembered(cache: Path) -> None:
    assert remember(mine()) == calibration_file() == cache / "tensornet-attn" / "rates.json"
    assert of_this_machine() == mine()
    assert device_named("this") == device_of(mine())
    assert [path.name for path in calibration_file().parent.iterdir()] == ["rates.json"]


def test_what_was_not_measured_has_the_shipped_efficiency() -> None:
    """As C++ kernels that the cache lacked, and what tables of before do not know."""
    known = [one for one in shipped().efficiency if not one.kind.startswith("native")]
    remember(replace(mine(), efficiency=tuple(replace(one, forward=1.5) for one in known)))
    found = of_this_machine()
    assert found.efficiency_of("native calls", True) == shipped().efficiency_of("native calls", True)
    assert found.efficiency_of("product", False) == 1.5


@pytest.mark.parametrize(("system", "folder"), [(Unix, ".cache"), (MacOS, "Library/Caches")])
def test_without_the_variable_it_is_in_the_home(
    system: type[Unix], folder: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(cache / "home"))
    monkeypatch.setattr(platformdirs, "PlatformDirs", system)
    assert calibration_file() == cache / "home" / folder / "tensornet-attn" / "rates.json"
    assert cpp_folder() == calibration_file().with_name("cpp")


@pytest.mark.parametrize(("system", "folder"), [("linux", ".cache"), ("darwin", "Library/Caches")])
def test_files_alone_find_the_folder_of_libraries_without_platformdirs(
    system: str, folder: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.setattr(sys, "platform", system)
    assert cpp_folder() == cache / "tensornet-attn" / "cpp"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(cache / "home"))
    assert cpp_folder() == cache / "home" / folder / "tensornet-attn" / "cpp"


def test_not_measured() -> None:
    assert refusal(device_named, "this") == (
        "this machine has not been measured; run 'tensornet-attn doctor --calibrate', which takes about 20 seconds."
    )


OTHERS = {
    "processor": ("Other CPU", "the processor was Other CPU, and is "),
    "cores": (1000, "the number of cores was 1000, and is "),
    "torch": ("1.0", "the version of torch was 1.0, and is "),
}


@pytest.mark.parametrize("field", OTHERS)
def test_a_table_of_another_machine_is_not_used(field: str) -> None:
    value, words = OTHERS[field]
    remember(replace(mine(), machine=replace(machine(1), **{field: value})))
    message = refusal(device_named, "this")
    assert message.startswith(f"{calibration_file()}: {words}")
    assert message.endswith(" now; run 'tensornet-attn doctor --calibrate' again.")


def setting(value: object, *path: Any) -> Callable[[dict[str, Any]], object]:
    def change(found: Any) -> object:
        for name in path[:-1]:
            found = found[name]
        found[path[-1]] = value
        return found

    return change


CHANGES = {
    "no products": setting([], "products"),
    "no passes": setting([], "passes"),
    "no attention": setting([], "attention"),
    "no efficiency": setting([], "efficiency"),
    "no machine": lambda found: found.pop("machine"),
    "a key of a machine too many": setting(1, "machine", "size"),
    "a rate of zero": setting(0, "bandwidth"),
    "a rate that is no number": setting("1", "exponentials"),
    "an infinite rate": setting(float("inf"), "exponentials"),
    "a negative efficiency": setting(-1.0, "efficiency", 0, "forward"),
    "a shape without a side": lambda found: found["products"][0]["shape"].pop("rows"),
    "a side that is a fraction": setting(1.5, "products", 0, "shape", "rows"),
    "one call": setting([1e-6], "call"),
    "no day": setting("today", "measured"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_damaged_file(name: str) -> None:
    remember(mine())
    found = json.loads(calibration_file().read_text())
    CHANGES[name](found)
    calibration_file().write_text(json.dumps(found))
    assert refusal(device_named, "this") == (
        f"{calibration_file()} is damaged; run 'tensornet-attn doctor --calibrate' again."
    )


def test_a_file_of_another_version() -> None:
    remember(mine())
    found = json.loads(calibration_file().read_text())
    calibration_file().write_text(json.dumps(found | {"format": 1}))
    with pytest.raises(ta.InputError, match="was written by another version of tensornet-attn; run 'tensornet-attn"):
        device_named("this")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"rate"', "\xff", "null"])
def test_a_file_that_is_no_table(text: str) -> None:
    remember(mine())
    calibration_file().write_bytes(text.encode("latin-1"))
    with pytest.raises(ta.InputError, match="is damaged"):
        device_named("this")
