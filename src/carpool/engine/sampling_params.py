"""How one request wants its tokens chosen."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request; every field is valid by the time it is built.

    `temperature` 0 means greedy. `top_k` 0, `top_p` 1 and `min_p` 0 switch the filter off.
    `repetition_penalty` looks at prompt and output, `presence_penalty` and
    `frequency_penalty` at output only. `logit_bias` adds to logits, by token id.
    `logprobs` is the number of alternatives to report with each token (0: the token's own
    only; None: no logprobs). `grammar` is an llguidance grammar (see `engine.guidance`).
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    grammar: str | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0
