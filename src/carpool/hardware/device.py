"""The devices that models run on: what they hold, how fast they read and what they cost.

`devices.json` names the source of every figure; what is derived or from memory says so.
"""

import difflib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from carpool.errors import CarpoolError

_FILE = Path(__file__).with_name("devices.json")
_VENDOR_WORDS = frozenset(
    ("nvidia", "amd", "intel", "apple", "geforce", "tesla", "gpu", "radeon", "instinct", "oam")
)
_SPLIT = re.compile(r"[^a-z0-9]+")
_BRACKETS = re.compile(r"\(.*?\)")
_SIZE = re.compile(r"(\d+)\s*gb?\b")


class UnknownDevice(CarpoolError):
    """No device by that name, or several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Sizes in GiB as `driver_gib` and `engine_gib` (what PyTorch may have of it) say, in GB
    on the box; bandwidth in 1e9 bytes/s; dense FLOPS in 1e12/s; None where no source is known.

    `rent_usd_per_hour` are quotes with their source, as of the catalogue's date.
    """

    name: str
    vendor: str
    kind: str
    bandwidth_gbs: float
    nominal_gb: float | None = None
    driver_gib: float | None = None
    engine_gib: float | None = None
    fp16_tflops: float | None = None
    fp8_tflops: float | None = None
    int8_tops: float | None = None
    compute_capability: str | None = None
    power_w: float | None = None
    buy_usd: float | None = None
    rent_usd_per_hour: tuple[tuple[float, str], ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    note: str | None = None

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    @property
    def has_bf16(self) -> bool:
        """Of a CPU: whether it multiplies bf16 itself (AVX-512 BF16 or AMX)."""
        return "BF16" in (self.note or "")

    @property
    def usable_gib(self) -> tuple[float, str]:
        """What an engine may use, and whether that is "measured", "driver" (somebody saw it) or
        "assumed".

        CUDA keeps 1 to 1.5 % of what nvidia-smi shows. Unified memory without a figure: the
        three quarters that macOS hands to the GPU. Raises `UnknownDevice` for a plain CPU,
        whose memory is the machine's.
        """
        if self.engine_gib is not None:
            return self.engine_gib, "measured" if self.is_cpu else "driver"
        if self.driver_gib is not None and self.kind == "unified":
            return self.driver_gib, "driver"
        if self.driver_gib is not None:
            return self.driver_gib * (0.985 if self.driver_gib <= 32 else 0.99), "driver"
        if self.nominal_gb is None:
            raise UnknownDevice(
                f"{self.name}: its memory is the machine's; say how much with --gpu-memory 64GiB"
            )
        return self.nominal_gb * (0.75 if self.kind == "unified" else 0.98), "assumed"


@cache
def _catalogue() -> tuple[tuple[Device, ...], str]:
    fields = json.loads(_FILE.read_text(encoding="utf-8"))
    devices = []
    for entry in fields["devices"]:
        entry = dict(entry)
        rents = tuple((usd, source) for usd, source in entry.pop("rent_usd_per_hour", []))
        sources = tuple(entry.pop("sources", {}).items())
        devices.append(Device(rent_usd_per_hour=rents, sources=sources, **entry))
    return tuple(devices), str(fields["as_of"])


def all_devices() -> tuple[Device, ...]:
    return _catalogue()[0]


def prices_as_of() -> str:
    """The date of the prices, like 2026-11-29."""
    return _catalogue()[1]


def find_devices(name: str) -> list[Device]:
    """Those whose name has all the words of `name`, or the one that has no others.

    The size of the memory and what stands in brackets may be left out.
    """
    words = _words(name)
    if not words:
        return []
    for wanted in (words, _words(_BRACKETS.sub(" ", name))):
        same = [device for device in all_devices() if _core(device) == wanted - _size(device)]
        with_size = [device for device in same if _size(device) <= wanted]
        if len(same) == 1 or len(with_size) == 1:
            return same if len(same) == 1 else with_size
    return [
        device
        for device in all_devices()
        if words - _size(device) and words - _size(device) <= _words(device.name)
    ]


def find_device(name: str) -> Device:
    """The one device that `name` stands for. Raises `UnknownDevice` with what is near."""
    found = find_devices(name)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(repr(device.name) for device in found)
        raise UnknownDevice(f"GPU {name!r} matches {len(found)} devices; give one of {names}")
    known = difflib.get_close_matches(name, [d.name for d in all_devices()], n=6, cutoff=0.3)
    raise UnknownDevice(
        f"GPU {name!r} is not in the catalogue; nearest: {', '.join(known) or 'none'}. "
        "For another device give --gpu-memory and --bandwidth, like 24GiB and 900"
    )


def _words(name: str) -> frozenset[str]:
    text = _SIZE.sub(r"\1gb ", name.lower())
    return frozenset(word for word in _SPLIT.split(text) if word) - _VENDOR_WORDS


def _core(device: Device) -> frozenset[str]:
    """The words that a name must have: no size, nothing in brackets."""
    return _words(_BRACKETS.sub(" ", device.name)) - _size(device)


def _size(device: Device) -> frozenset[str]:
    """A word like 80gb, which says nothing new of a device with 80 GB."""
    return frozenset({f"{device.nominal_gb:.0f}gb"} if device.nominal_gb else ())
