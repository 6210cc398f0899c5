"""Carpool: share one open language model among a team, on your own hardware."""

__version__ = "0.1.0"
