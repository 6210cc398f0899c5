"""What the series say is coming. Pure: a view goes in, signals come out."""

from carpool.watch.signals.find import find_signals
from carpool.watch.signals.trend import read_trend

__all__ = ["find_signals", "read_trend"]
