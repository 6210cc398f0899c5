"""The plan as a figure: memory, what one decision buys, rent against buy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carpool.lab.plot import PlotError, import_matplotlib
from carpool.planning.choices import Choice
from carpool.planning.figure import GIB
from carpool.planning.money import Money
from carpool.planning.plan import Plan

_COLOURS = ("#0072B2", "#00735A", "#B34700", "#8CC5E8", "#8FD3BF")
_FORMATS = (".png", ".svg", ".pdf")


def save_plan_plot(plan: Plan, choices: Sequence[Choice], money: Money | None, path: Path) -> None:
    """Raises `PlotError` for a format that cannot be drawn and a file that cannot be written."""
    if path.suffix not in _FORMATS:
        raise PlotError(f"{path}: cannot draw that; name a file with {', '.join(_FORMATS)}")
    matplotlib = import_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "carpool"}):
        has_money = money is not None and money.rent_per_hour and money.buy
        figure = Figure(figsize=(8, 8 if has_money else 5.5), layout="constrained")
        axes = figure.subplots(3 if has_money else 2, 1)
        _draw_memory(axes[0], plan)
        _draw_choices(axes[1], choices)
        if has_money and money is not None:
            _draw_money(axes[2], money)
        try:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise PlotError(f"{path}: cannot be written: {error.strerror}") from None


def _draw_memory(axes: Any, plan: Plan) -> None:
    memory, left = plan.memory, 0.0
    names = ("weights", "kv_cache", "activation", "non_torch", "graphs")
    for name, colour in zip(names, _COLOURS, strict=True):
        size = max(0.0, getattr(memory, name).value / GIB)
        axes.barh(
            [0], [size], left=left, color=colour, label=f"{name.replace('_', ' ')} {size:.1f}"
        )
        left += size
    axes.axvline(memory.total.value / GIB, color="black", linewidth=1)
    axes.set_yticks([])
    axes.set_xlabel("GiB of one device")
    axes.set_title(f"{plan.request.model.name} on {plan.request.device.name}")
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.3), frameon=False)


def _draw_choices(axes: Any, choices: Sequence[Choice]) -> None:
    rows = [(choice.name, _sequences(choice)) for choice in choices]
    names, values = [name for name, _ in rows], [value for _, value in rows]
    bars = axes.barh(names[::-1], values[::-1], color=_COLOURS[0])
    axes.bar_label(bars, [f"{value:,.0f}" if value else "does not fit" for value in values[::-1]])
    axes.margins(x=0.12)
    axes.set_xlabel("sequences at once")


def _sequences(choice: Choice) -> float:
    """Of all engines together; 0 where it does not fit or is not open."""
    plan = choice.plan
    if plan is None or plan.trouble:
        return 0.0
    return plan.seqs_at_context.value * plan.settings.data_parallel


def _num_months(money: Money) -> int:
    """Three years, or on to the break-even if that comes within ten."""
    usual = money.break_even_months[1] if money.break_even_months else 0.0
    return max(36, int(1.2 * usual)) if usual <= 100 else 36


def _draw_money(axes: Any, money: Money) -> None:
    rent, buy, power = money.rent_per_hour, money.buy, money.power_per_hour
    if rent is None or buy is None or power is None:
        return
    months = list(range(_num_months(money) + 1))
    hours = [month * money.hours_per_month for month in months]
    axes.fill_between(months, [h * rent[0] for h in hours], [h * rent[2] for h in hours],
                      color=_COLOURS[3], label="rent")  # fmt: skip
    axes.fill_between(months, [buy + h * power[0] for h in hours],
                      [buy + h * power[2] for h in hours], color=_COLOURS[2], alpha=0.6,
                      label="buy and power")  # fmt: skip
    if money.break_even_months and (usual := money.break_even_months[1]) <= months[-1]:
        axes.axvline(usual, color="black", linestyle=":", label=f"break-even, {usual:.0f} months")
    axes.set_xlabel(f"months of {money.hours_per_month:.0f} hours")
    axes.set_ylabel("USD")
    axes.legend(frameon=False)
