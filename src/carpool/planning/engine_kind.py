"""The engines whose rules are known, and their versions."""

import re
from enum import StrEnum

from carpool.planning.errors import PlanError

Version = tuple[int, ...]


class EngineKind(StrEnum):
    EMBEDDED = "embedded"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_CPP = "llama.cpp"


_OTHER_NAMES = {
    "llama-cpp": EngineKind.LLAMA_CPP,
    "llama_cpp": EngineKind.LLAMA_CPP,
    "llama-server": EngineKind.LLAMA_CPP,
    "ik_llama.cpp": EngineKind.LLAMA_CPP,
    "ollama": EngineKind.LLAMA_CPP,
    "carpool": EngineKind.EMBEDDED,
}


def parse_engine(text: str) -> EngineKind:
    """Raises `PlanError`."""
    name = text.strip().lower()
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    if name in [*EngineKind]:
        return EngineKind(name)
    raise PlanError(f"engine {text!r} is not known; give one of {', '.join(EngineKind)}")


def read_version(text: str | None) -> Version | None:
    """As a person writes it; None for none. Raises `PlanError` for what is no version."""
    version = parse_version(text)
    if text is not None and version is None:
        raise PlanError(f"engine version {text!r} is not one; write it like 0.19 or 0.19.0")
    return version


def parse_version(text: str | None) -> Version | None:
    """(0, 19, 0) of "0.19.0", "v0.8.5.post1" or ">=0.21.0"; None if there is no number."""
    found = re.search(r"\d+(?:\.\d+)+", text or "")
    return tuple(int(part) for part in found[0].split(".")) if found else None
