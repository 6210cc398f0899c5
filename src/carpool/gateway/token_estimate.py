"""How many tokens a request will take, before anybody has counted them."""

FIRST_BYTES_PER_TOKEN = 4.0
FIRST_OUTPUT_TOKENS = 256.0
_MEMORY = 16


class BytesPerToken:
    """Learned per model from what backends report: bytes of the request's body per prompt
    token, which is all a gateway without a tokeniser has to go by."""

    def __init__(self) -> None:
        self._ratio = FIRST_BYTES_PER_TOKEN

    def prompt_tokens(self, num_body_bytes: int) -> int:
        return max(1, round(num_body_bytes / self._ratio))

    def learn(self, num_body_bytes: int, num_prompt_tokens: int) -> None:
        if num_prompt_tokens > 0:
            seen = min(16.0, max(0.25, num_body_bytes / num_prompt_tokens))
            self._ratio += (seen - self._ratio) / _MEMORY


class ExpectedOutput:
    """Per person, the mean of their last answers' lengths; never more than the cap of a
    request."""

    def __init__(self, max_people: int = 4096) -> None:
        self._means: dict[str, float] = {}
        self._max_people = max_people

    def tokens(self, person_id: str, cap: int | None) -> int:
        expected = self._means.get(person_id, FIRST_OUTPUT_TOKENS)
        return max(1, round(expected if cap is None else min(expected, cap)))

    def learn(self, person_id: str, num_output_tokens: int) -> None:
        mean = self._means.pop(person_id, None)
        if mean is None:
            mean = float(num_output_tokens)
        self._means[person_id] = mean + (num_output_tokens - mean) / _MEMORY
        if len(self._means) > self._max_people:
            del self._means[next(iter(self._means))]
