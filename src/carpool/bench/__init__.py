"""Loads of an OpenAI-compatible server, what they measured, and the capacity found by them."""
