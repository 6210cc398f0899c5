"""How much a key, a person, or a person with one model may use."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit. `rpm` and `tpm` are requests and tokens a minute, the budgets count
    prompt and output tokens of a day and of a month (UTC)."""

    rpm: int | None = None
    tpm: int | None = None
    max_in_flight: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    daily_tokens: int | None = None
    monthly_tokens: int | None = None


NO_LIMITS = Limits()
LIMIT_NAMES = tuple(field.name for field in fields(Limits))
