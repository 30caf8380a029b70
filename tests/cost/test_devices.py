"""The device table."""

from __future__ import annotations

import pytest

from tensornet_attn.cost.devices import DEVICES, GENERIC, Device, device_named


def test_generic_is_fixed() -> None:
    assert Device("generic", 20 * 10**12, 10**12) == GENERIC == device_named("generic")


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.name)
def test_a_balance_of_each(device: Device) -> None:
    assert device.width in (2, 4)
    if device.bandwidth is not None:
        assert 2 < device.rate / device.bandwidth < 400  # FLOPs a byte: above, something is a power of ten off
        assert device.seconds(device.time(device.rate, 0)) == 1
        assert device.seconds(device.time(0, device.bandwidth)) == 1
