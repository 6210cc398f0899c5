"""The openai package drives a real server with the real model."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pydantic
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.model

MODEL = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
MOVE = {
    "type": "function",
    "function": {
        "name": "play_move",
        "description": "Play a chess move",
        "parameters": {
            "type": "object",
            "properties": {"move": {"type": "string", "enum": ["e2e4", "d2d4"]}},
            "required": ["move"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="session")
def client(server_url):
    with openai.OpenAI(
        base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=120
    ) as client:
        yield client


def greedy(client, messages=QUESTION, **fields):
    fields = {"temperature": 0, "max_tokens": 24, **fields}
    return client.chat.completions.create(model=MODEL, messages=messages, **fields)


def metric(server_url: str, name: str) -> float:
    families = text_string_to_metric_families(httpx.get(f"{server_url}/metrics").text)
    return sum(s.value for family in families for s in family.samples if s.name == name)


def test_the_model_is_listed(client):
    assert MODEL in [model.id for model in client.models.list()]


def test_it_answers_a_question(client):
    answer = greedy(client)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same(client):
    whole = greedy(client)
    chunks = list(greedy(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_many_people_are_answered_at_once(client):
    def ask(number):
        return greedy(client, [{"role": "user", "content": f"Count to {number}."}])

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(3, 11)))
    assert all(answer.choices[0].message.content for answer in answers)
    assert len({answer.id for answer in answers}) == 8


def test_a_long_prefix_is_found_again(client):
    system = {"role": "system", "content": "You are a careful chess teacher. " * 40}
    greedy(client, [system, *QUESTION], max_tokens=1)
    again = greedy(client, [system, {"role": "user", "content": "Hello!"}], max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens >= 200


def test_a_stop_string_ends_the_text_before_it(client):
    answer = greedy(client, stop=["Paris"]).choices[0]
    assert "Paris" not in answer.message.content
    assert answer.finish_reason == "stop"


def test_a_seed_gives_the_same_text_again(client):
    fields = {"temperature": 1.0, "seed": 7, "n": 2}
    first, second = (
        [choice.message.content for choice in greedy(client, **fields).choices] for _ in range(2)
    )
    assert first == second
    assert first[0] != first[1]


def test_a_schema_is_kept_to(client):
    class City(pydantic.BaseModel):
        name: str
        country: str

    answer = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=City, temperature=0, max_tokens=120
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_a_regex_and_a_choice_are_kept_to(client):
    number = greedy(client, extra_body={"guided_regex": "[0-9]{4}"}).choices[0].message.content
    assert re.fullmatch("[0-9]{4}", number)
    choice = greedy(client, extra_body={"guided_choice": ["rook", "bishop"]}).choices[0]
    assert choice.message.content in ("rook", "bishop")


def test_a_required_tool_is_called(client):
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 60}
    choice = greedy(client, tools=[MOVE], **fields).choices[0]
    [call] = choice.message.tool_calls
    assert call.function.name == "play_move"
    assert json.loads(call.function.arguments)["move"] in ("e2e4", "d2d4")
    assert choice.finish_reason == "tool_calls"


def test_a_named_tool_is_called_in_a_stream(client):
    choice = {"type": "function", "function": {"name": "play_move"}}
    name, arguments, reasons = "", "", set()
    for chunk in greedy(client, tools=[MOVE], tool_choice=choice, max_tokens=60, stream=True):
        reasons.add(chunk.choices[0].finish_reason)
        for part in chunk.choices[0].delta.tool_calls or ():
            name += part.function.name or ""
            arguments += part.function.arguments or ""
    assert name == "play_move"
    assert json.loads(arguments)["move"] in ("e2e4", "d2d4")
    assert "tool_calls" in reasons


def test_logprobs_name_the_chosen_token_first(client):
    answer = greedy(client, logprobs=True, top_logprobs=3, max_tokens=5).choices[0]
    entries = answer.logprobs.content
    assert len(entries) == 5
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)
        assert entry.logprob <= 0
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text.startswith(answer.message.content)


def test_a_prompt_is_completed_and_scored(client):
    prompt = "The capital of France is"
    fields = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 3}
    scored = client.completions.create(**fields, echo=True, logprobs=1).choices[0]
    assert scored.text.startswith(prompt)
    assert "".join(scored.logprobs.tokens).startswith(prompt)
    assert scored.logprobs.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in scored.logprobs.token_logprobs[1:])
    plain = client.completions.create(**fields).choices[0]
    assert scored.text == prompt + plain.text


def test_a_token_can_be_ruled_out(client, server_url):
    first = greedy(client, max_tokens=1, logprobs=True).choices[0].logprobs.content[0].token
    tokens = httpx.post(f"{server_url}/tokenize", json={"prompt": first}).json()["tokens"]
    other = greedy(client, max_tokens=1, logit_bias={str(tokens[0]): -100}, logprobs=True)
    assert other.choices[0].logprobs.content[0].token != first


def test_text_goes_to_tokens_and_back(server_url):
    text = "Grüße, 한국어 👩‍👩‍👧!"
    tokens = httpx.post(f"{server_url}/tokenize", json={"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"]) > 0
    back = httpx.post(f"{server_url}/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert back == {"prompt": text}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 1_000_000}, "messages"),
        ({"logit_bias": {"9999999": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"extra_body": {"guided_json": {"properties": {"foo": "bar"}}}}, "guided_json"),
    ],
)
def test_bad_input_is_refused_while_a_stream_goes_on(client, fields, param):
    stream = greedy(client, stream=True, max_tokens=16, extra_body={"ignore_eos": True})
    next(stream)
    with pytest.raises(openai.BadRequestError) as refused:
        greedy(client, **fields)
    assert refused.value.param == param
    chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
    assert refused.value.code == "model_not_found"


def test_a_closed_stream_frees_its_seat(client, server_url):
    stream = greedy(client, stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
    assert any(metric(server_url, "carpool_num_requests_running") == 1 for _ in stream)
    stream.close()
    greedy(client, max_tokens=4)
    assert metric(server_url, "carpool_num_requests_running") == 0
    assert metric(server_url, "carpool_kv_cache_blocks_used") == 0
