"""How people use a model: what a request is like, and how long until the next one."""

from dataclasses import dataclass, replace

from carpool.planning.errors import PlanError, require_positive

_SPLITWISE = "median of Azure's services, https://arxiv.org/abs/2311.18677, figure 3"
_TURN_GAP = "public chat traces, arrival to arrival, p50 132 s"
_AGENTS = "public coding-agent traces: 84 to 127 s until the human, 6.8 requests per human turn"
_ASSUMED = "assumed; replace it by your own usage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One person's requests. `think_seconds` lie between an answer's end and the next
    request; of `prompt_tokens` the share `cached_share` is in the prefix cache already;
    `context_tokens` are what a sequence holds on average while it runs."""

    name: str
    think_seconds: float
    prompt_tokens: int
    output_tokens: int
    context_tokens: int
    cached_share: float
    context_spread: float = 0.0
    """Standard deviation of `context_tokens` between sequences, where it is known."""
    sources: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        for name in ("think_seconds", "prompt_tokens", "output_tokens", "context_tokens"):
            require_positive(name, getattr(self, name))
        if self.context_spread < 0:
            raise PlanError(f"context_spread is {self.context_spread:g}; it must not be below 0")
        if not 0 <= self.cached_share < 1:
            raise PlanError(f"cached_share is {self.cached_share:g}; it must be in [0, 1)")

    @property
    def new_prompt_tokens(self) -> float:
        """That have to be computed."""
        return self.prompt_tokens * (1 - self.cached_share)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="chat",
            think_seconds=120,
            prompt_tokens=1020,
            output_tokens=129,
            context_tokens=4000,
            cached_share=0.0,
            sources=(
                ("think_seconds", _TURN_GAP + ", less an answer"),
                ("prompt_tokens", _SPLITWISE),
                ("output_tokens", _SPLITWISE),
                ("context_tokens", _ASSUMED),
                ("cached_share", _ASSUMED),
            ),
        ),
        Profile(
            name="reasoning-chat",
            think_seconds=120,
            prompt_tokens=1020,
            output_tokens=1500,
            context_tokens=6000,
            cached_share=0.0,
            sources=(
                ("think_seconds", _TURN_GAP),
                ("prompt_tokens", _SPLITWISE),
                ("output_tokens", _ASSUMED),
                ("context_tokens", _ASSUMED),
                ("cached_share", _ASSUMED),
            ),
        ),
        Profile(
            name="coding-agents",
            think_seconds=15.5,
            prompt_tokens=20_000,
            output_tokens=300,
            context_tokens=24_000,
            cached_share=0.9,
            sources=(
                ("think_seconds", _AGENTS + "; 105 s over 6.8 requests"),
                ("prompt_tokens", _ASSUMED),
                ("output_tokens", _ASSUMED),
                ("context_tokens", _ASSUMED),
                ("cached_share", _ASSUMED),
            ),
        ),
        Profile(
            name="agent-fleet",
            think_seconds=3,
            prompt_tokens=8000,
            output_tokens=300,
            context_tokens=8000,
            cached_share=0.8,
            sources=(
                ("think_seconds", "the time of a tool; " + _ASSUMED),
                ("prompt_tokens", _ASSUMED),
                ("output_tokens", _ASSUMED),
                ("context_tokens", _ASSUMED),
                ("cached_share", "a shared system prompt; " + _ASSUMED),
            ),
        ),
    )
}


def find_profile(name: str) -> Profile:
    """Raises `PlanError` with the names that there are."""
    try:
        return PROFILES[name]
    except KeyError:
        raise PlanError(
            f"profile {name!r} is not known; give one of {', '.join(PROFILES)}"
        ) from None


def shortened(name: str, max_model_len: int | None) -> Profile:
    """The profile, with a context of at most half of what a sequence may have."""
    profile = find_profile(name)
    if max_model_len is None or profile.context_tokens <= max_model_len // 2:
        return profile
    return replace(profile, context_tokens=max(1, max_model_len // 2))
