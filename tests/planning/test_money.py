"""Rent against buy."""

import pytest

from carpool.hardware.device import find_device
from carpool.planning.errors import PlanError
from carpool.planning.money import HOST_SHARE, money


def test_break_even_is_where_both_cost_the_same() -> None:
    device = find_device("RTX 4090")
    found = money(device, 1, 160, buy_usd=2000, rent_usd_per_hour=1.0, usd_per_kwh=0.2)
    assert found.break_even_hours
    assert found.break_even_months
    assert found.power_per_hour
    hours, power = found.break_even_hours[1], found.power_per_hour[1]
    assert hours * 1.0 == pytest.approx(2000 * (1 + HOST_SHARE) + hours * power)
    assert found.break_even_months[1] == pytest.approx(hours / 160)


def test_more_hours_a_month_pay_off_in_fewer_months() -> None:
    device = find_device("RTX 4090")
    seldom = money(device, 1, 40, rent_usd_per_hour=1.0).break_even_months
    often = money(device, 1, 400, rent_usd_per_hour=1.0).break_even_months
    assert seldom
    assert often
    assert often[1] < seldom[1]


def test_power_that_costs_more_than_the_rent_never_pays_off() -> None:
    found = money(find_device("RTX 4090"), 1, 160, rent_usd_per_hour=0.01)
    assert found.break_even_hours == (float("inf"),) * 3


def test_prices_that_nobody_knows_are_left_out() -> None:
    found = money(find_device("M2 Max 96GB"), 1, 160)
    assert found.rent_per_hour is None
    assert found.break_even_hours is None


@pytest.mark.parametrize("hours", [0, -1])
def test_no_hours_are_refused(hours: float) -> None:
    with pytest.raises(PlanError, match="hours per month"):
        money(find_device("RTX 4090"), 1, hours)
