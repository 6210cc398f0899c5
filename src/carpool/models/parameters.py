"""How many weights the parts of a model have: parts that engines quantise or split alike."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of weights.

    embedding: the input table. lm_head: the output table, 0 if it is the input's. dense:
    matrices of attention and MLP that every token passes. experts: matrices of all experts
    that are routed to, of which a token passes the share `active_experts`. replicated:
    norms and routers, whole on every rank and never quantised. latent: projections
    to and from the latents of MLA, whole on every rank and quantised like `dense`. vision:
    encoders of images or sound. draft: layers that predict tokens ahead (MTP), loaded only
    to speculate.
    """

    embedding: int
    lm_head: int
    dense: int
    experts: int = 0
    active_experts: float = 1.0
    replicated: int = 0
    latent: int = 0
    vision: int = 0
    draft: int = 0

    @property
    def total(self) -> int:
        """All but the draft layers, as model cards count them."""
        table = self.embedding + self.lm_head
        return table + self.dense + self.experts + self.replicated + self.latent + self.vision

    @property
    def active(self) -> int:
        """Read for one token: the table of inputs gives one row only."""
        table = self.lm_head or self.embedding
        return (
            table
            + self.dense
            + self.replicated
            + self.latent
            + int(self.experts * self.active_experts)
        )
