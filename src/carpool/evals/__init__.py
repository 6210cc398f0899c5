"""Eval sets, runs of them, and the gate that an upgrade passes through."""
