"""The catalogue of devices."""

import pytest

from carpool.hardware.device import UnknownDevice, all_devices, find_device, find_devices
from carpool.hardware.probe import this_cpu


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx 3090", "RTX 3090"),
        ("NVIDIA RTX 3090 24GB", "RTX 3090"),
        ("Tesla T4", "T4"),
        ("L4", "L4"),
        ("gb10", "DGX Spark (GB10)"),
        ("Apple M4 Max", "M4 Max 128GB"),
    ],
)
def test_people_and_drivers_name_devices_in_many_ways(name: str, found: str) -> None:
    assert find_device(name).name == found


def test_every_name_of_the_catalogue_finds_itself() -> None:
    for device in all_devices():
        assert find_device(device.name) is device


def test_a_name_of_several_devices_lists_them() -> None:
    with pytest.raises(UnknownDevice, match="matches 2 devices; give one of 'A100 PCIe 80GB'"):
        find_device("A100 80GB")


@pytest.mark.parametrize("name", ["", "  ", "GPU", "RTX 9999"])
def test_what_is_not_there_is_not_guessed(name: str) -> None:
    assert find_devices(name) == []
    with pytest.raises(UnknownDevice):
        find_device(name)


def test_every_figure_has_a_source() -> None:
    for device in all_devices():
        sources = dict(device.sources)
        for field in ("bandwidth_gbs", "fp16_tflops", "buy_usd", "engine_gib"):
            assert getattr(device, field) is None or field in sources, (device.name, field)


def test_engines_get_less_than_the_driver_shows() -> None:
    for device in all_devices():
        if device.driver_gib and device.kind != "unified":
            assert device.usable_gib[0] < device.driver_gib, device.name


def test_a_plain_cpu_has_no_memory_of_its_own() -> None:
    [cpu] = [device for device in all_devices() if "9654" in device.name]
    with pytest.raises(UnknownDevice, match="--gpu-memory"):
        _ = cpu.usable_gib


def test_this_machine_has_memory() -> None:
    gib, how = this_cpu().usable_gib
    assert gib > 0
    assert how == "measured"
