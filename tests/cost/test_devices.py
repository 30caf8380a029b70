"""The device table, and this machine as a file of two numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn.cost.devices import DEVICES, GENERIC, Device, calibration_file, device_named, remember

MEASURED = Device("this", rate=7 * 10**10, bandwidth=10**10)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_generic_is_fixed() -> None:
    assert Device("generic", 20 * 10**12, 10**12) == GENERIC == device_named("generic")


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.name)
def test_a_balance_of_each(device: Device) -> None:
    assert device.width in (2, 4)
    if device.bandwidth is not None:
        assert 2 < device.rate / device.bandwidth < 400  # FLOPs a byte: above, something is a power of ten off
        assert device.seconds(device.time(device.rate, 0)) == 1
        assert device.seconds(device.time(0, device.bandwidth)) == 1


def test_this_machine_is_remembered(cache: Path) -> None:
    assert remember(MEASURED) == calibration_file() == cache / "tensornet-attn" / "device.json"
    assert device_named("this") == MEASURED
    assert [path.name for path in calibration_file().parent.iterdir()] == ["device.json"]


def test_without_the_variable_it_stands_in_the_home(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(cache / "home"))
    assert calibration_file() == cache / "home" / ".cache" / "tensornet-attn" / "device.json"


def test_not_measured() -> None:
    with pytest.raises(ta.InputError) as error:
        device_named("this")
    assert str(error.value) == (
        "this machine has not been measured; run 'tensornet-attn doctor --calibrate', which takes about a second."
    )


DAMAGED = ["", "{", "[]", "{}", '"rate"', json.dumps({"rate": 1.5, "bandwidth": 2}), "\xff"]
DAMAGED += [json.dumps({"rate": rate, "bandwidth": 5}) for rate in (0, -1, True, 10**18, None, "1")]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file(text: str) -> None:
    remember(MEASURED)
    calibration_file().write_bytes(text.encode("latin-1"))
    with pytest.raises(ta.InputError) as error:
        device_named("this")
    assert str(error.value) == f"{calibration_file()} is damaged; run 'tensornet-attn doctor --calibrate' again."
