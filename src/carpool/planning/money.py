"""Rent or buy: what an hour costs either way, and after how many hours buying is cheaper."""

from dataclasses import dataclass

from carpool.hardware.device import Device, prices_as_of
from carpool.planning.errors import require_positive
from carpool.planning.figure import Known

USD_PER_KWH = (0.10, 0.20, 0.40)
"""Low, usual, high; assumed: give your own."""
HOST_SHARE = 0.5
"""Of the device's price and power that the rest of the machine adds; assumed."""
IDLE_SHARE = 0.15
"""Of its full power that a device takes while nobody asks it; assumed."""
HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True)
class Money:
    """USD. Ranges are (low, usual, high); None where no price is known. Break-even counts
    hours of use, months at `hours_per_month` of use, which are known how
    `hours_known` says; None if somebody gave them."""

    as_of: str
    rent_per_hour: tuple[float, float, float] | None
    buy: float | None
    power_per_hour: tuple[float, float, float] | None
    hours_per_month: float
    break_even_hours: tuple[float, float, float] | None
    break_even_months: tuple[float, float, float] | None
    hours_known: Known | None = Known.ASSUMED


def money(
    device: Device,
    num_devices: int,
    hours_per_month: float,
    *,
    buy_usd: float | None = None,
    rent_usd_per_hour: float | None = None,
    usd_per_kwh: float | None = None,
    hours_known: Known | None = Known.ASSUMED,
) -> Money:
    """Prices of one device replace the catalogue's. Raises `PlanError` for those below zero."""
    for name, value in (
        ("hours per month", hours_per_month),
        ("price", buy_usd),
        ("rent", rent_usd_per_hour),
        ("price of power", usd_per_kwh),
    ):
        require_positive(name, value)
    rent = _rent(device, num_devices, rent_usd_per_hour)
    price = buy_usd or device.buy_usd
    buy = None if price is None else price * num_devices * (1 + HOST_SHARE)
    power = _power(device, num_devices, hours_per_month, usd_per_kwh)
    hours = months = None
    if rent and buy and power:
        ends = (_hours(buy, rent[2], power[0]), _hours(buy, rent[1], power[1]),
                _hours(buy, rent[0], power[2]))  # fmt: skip
        hours = ends
        months = (ends[0] / hours_per_month, ends[1] / hours_per_month, ends[2] / hours_per_month)
    return Money(prices_as_of(), rent, buy, power, hours_per_month, hours, months, hours_known)


def _rent(device: Device, num_devices: int, own: float | None) -> tuple[float, float, float] | None:
    """The catalogue's quotes; one alone is taken to be give or take a third."""
    quotes = sorted([own] if own else [usd for usd, _ in device.rent_usd_per_hour])
    if not quotes:
        return None
    low, high = quotes[0], quotes[-1]
    if len(quotes) == 1 and not own:
        low, high = low * 0.67, high * 1.33
    return low * num_devices, quotes[len(quotes) // 2] * num_devices, high * num_devices


def _power(
    device: Device, num_devices: int, hours_per_month: float, own: float | None
) -> tuple[float, float, float] | None:
    """Per hour of use, idle hours included: a machine that is bought is on all month."""
    if device.power_w is None:
        return None
    idle = max(0.0, HOURS_PER_MONTH / hours_per_month - 1) * IDLE_SHARE
    kilowatts = device.power_w / 1000 * num_devices * (1 + HOST_SHARE) * (1 + idle)
    low, usual, high = (own, own, own) if own else USD_PER_KWH
    return kilowatts * low, kilowatts * usual, kilowatts * high


def _hours(buy: float, rent: float, power: float) -> float:
    """Infinite where power alone costs more than the rent."""
    return buy / (rent - power) if rent > power else float("inf")
