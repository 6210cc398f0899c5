"""Bad input gets a 4xx in OpenAI's shape, with the field, the value and the limit."""

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.engine.errors import ApiError
from carpool.engine.json_body import parse_json_object


def error_of(response: Any, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = json.loads(response.text, parse_constant=pytest.fail)
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]


FLOATS = {
    "temperature": "between 0 and 2",
    "top_p": "above 0 and at most 1",
    "min_p": "between 0 and 1",
    "presence_penalty": "between -2 and 2",
    "frequency_penalty": "between -2 and 2",
    "repetition_penalty": "between 0.01 and 100",
}


@pytest.mark.parametrize(
    "literal", ["NaN", "Infinity", "-Infinity", "1e309", "-3", '"nan"', "true"]
)
@pytest.mark.parametrize("field", FLOATS)
def test_a_number_that_is_none_is_refused(client, engine, field, literal):
    body = f'{{"messages": [{{"role": "user", "content": "x"}}], "{field}": {literal}}}'
    response = client.request(
        "POST",
        "/v1/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
    )
    error = error_of(response)
    assert error["param"] == field
    assert field in error["message"]
    assert FLOATS[field] in error["message"]
    assert engine.requests == []


def test_the_sentence_quotes_the_value(client):
    assert error_of(client.chat(temperature=-1))["message"] == (
        "temperature is -1, but must be a number between 0 and 2"
    )


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n": 0}, "n", "between 1 and 128"),
        ({"n": 129}, "n", "129"),
        ({"n": 1.5}, "n", "whole number"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": -1}, "max_tokens", "-1"),
        ({"max_tokens": "8"}, "max_tokens", "whole number"),
        ({"max_tokens": 8, "max_completion_tokens": 9}, "max_completion_tokens", "one of them"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "9"),
        ({"min_tokens": -1}, "min_tokens", "at least 0"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"seed": 2**63}, "seed", "whole number"),
        ({"seed": "one"}, "seed", '"one"'),
        ({"stop": ""}, "stop", "at least one character"),
        ({"stop": ["a", ""]}, "stop", "at least one character"),
        ({"stop": ["a"] * 17}, "stop", "17"),
        ({"stop": [1]}, "stop", "list of strings"),
        ({"stop": {"a": 1}}, "stop", "list of strings"),
        ({"stop": ["a", "b" * 1025]}, "stop", "1,025 characters, but at most 1,024"),
        ({"max_tokens": 2**63}, "max_tokens", "at most 9,223,372,036,854,775,807"),
        ({"max_tokens": 10**4299}, "max_tokens", "at most"),
        ({"max_completion_tokens": 10**4299}, "max_completion_tokens", "at most"),
        ({"min_tokens": 1e308}, "min_tokens", "at most"),
        ({"stop_token_ids": [10**4299]}, "stop_token_ids", "000..., but the vocabulary"),
        ({"stop_token_ids": [1] * 5000, "n": 128}, "stop_token_ids", "at most 524,288"),
        (
            {"logit_bias": {str(i): 1 for i in range(200)}, "stop_token_ids": [1] * 4000, "n": 128},
            "logit_bias",
            "4,200 entries for each of 128 choices",
        ),
        ({"logit_bias": {"257": 1}}, "logit_bias", "257"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"cat": 1}}, "logit_bias", "cat"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "between -100 and 100"),
        ({"logit_bias": {"5": None}}, "logit_bias", "between -100 and 100"),
        ({"logit_bias": [1]}, "logit_bias", "object"),
        ({"stop_token_ids": [257]}, "stop_token_ids", "257"),
        ({"logprobs": 3}, "logprobs", "boolean"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs is not true"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream is not true"),
        ({"ignore_eos": 1}, "ignore_eos", "boolean"),
        ({"request_id": "a b"}, "request_id", "letters"),
        ({"request_id": "x" * 129}, "request_id", "128"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", ""),
        ({"response_format": "json"}, "response_format", "must be a JSON object"),
        ({"modalities": ["audio"]}, "modalities", "text only"),
        ({"functions": []}, "functions", "use tools"),
        ({"tools": [{"type": "code"}]}, "tools[0].type", "function"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "a b",
        ),
        ({"tools": [{"type": "function"}] * 513}, "tools", "513 entries, but at most 512 work"),
        ({"messages": [{}] * 4097}, "messages", "4,097 entries, but at most 4,096 work"),
        ({"tool_choice": "required"}, "tool_choice", "tools is empty"),
        ({"tool_choice": "maybe"}, "tool_choice", "maybe"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": "hi"}, "messages", "list of messages"),
        ({"messages": ["hi"]}, "messages", "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages", "content is missing"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages", "wizard"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", "messages[0].content is 5"),
        ({"messages": [{"role": "tool", "content": "x"}, {}]}, "messages", "messages[1].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
            "image_url",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]},
            "messages",
            "tool_calls[0]",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "messages"),
    ],
)
def test_a_field_out_of_its_limits_is_refused(client, engine, fields, param, words):
    error = error_of(client.chat(**fields))
    assert error["param"] == param
    assert words in error["message"]
    assert len(error["message"]) < 500
    assert error["type"] == "invalid_request_error"
    assert engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [""]}, "prompt", "empty"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": ["a", ""]}, "prompt[1]", "empty"),
        ({"prompt": None}, "prompt", "string"),
        ({"prompt": 5}, "prompt", "list of token ids"),
        ({"prompt": [1, "a"]}, "prompt", "prompt[0]"),
        ({"prompt": [True]}, "prompt", "prompt[0]"),
        ({"prompt": [1.5]}, "prompt", "prompt[0]"),
        ({"prompt": [5, 257]}, "prompt", "257"),
        ({"prompt": [-1]}, "prompt", "-1"),
        ({"prompt": ["a"] * 129}, "prompt", "129"),
        ({"prompt": ["a"] * 2, "n": 65}, "n", "130 choices, but at most 128"),
        (
            {"prompt": "a" * 2000, "n": 32, "echo": True, "logprobs": 20, "max_tokens": 1},
            "logprobs",
            "1,344,000 log-probabilities of prompts (64,000 tokens), but at most 1,048,576",
        ),
        ({"best_of": 2}, "best_of", "must be 1"),
        ({"suffix": "end"}, "suffix", "middle"),
        ({"logprobs": 21}, "logprobs", "between 0 and 20"),
        ({"logprobs": True}, "logprobs", "whole number"),
        ({"max_tokens": 0}, "max_tokens", "echo"),
        ({"echo": "yes"}, "echo", "boolean"),
    ],
)
def test_a_completion_out_of_its_limits_is_refused(client, engine, fields, param, words):
    error = error_of(client.complete(**fields))
    assert error["param"] == param
    assert words in error["message"]
    assert engine.requests == []


def test_a_missing_field_is_named(client):
    assert error_of(client.post("/v1/completions", {}))["param"] == "prompt"
    assert error_of(client.post("/v1/chat/completions", {}))["param"] == "messages"


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "is_accepted"),
    [
        (2047, 1, True),
        (2047, None, True),
        (2040, 8, True),
        (2040, 9, False),
        (2048, None, False),
        (2048, 1, False),
        (2100, None, False),
        (1, 2047, True),
        (1, 2048, False),
    ],
)
def test_prompt_and_output_together_fill_the_context(client, num_prompt, max_tokens, is_accepted):
    response = client.complete("x" * num_prompt, max_tokens=max_tokens)
    if is_accepted:
        assert response.status_code == 200
        return
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert f"prompt has {num_prompt:,} tokens" in error["message"]
    assert "max_model_len is 2,048" in error["message"]


def test_a_prompt_no_tokeniser_could_make_fit_is_not_tokenised(client, engine, monkeypatch):
    monkeypatch.setattr(engine.tokenizer, "encode", pytest.fail)
    error = error_of(client.complete("x" * 40_000))
    assert error["code"] == "context_length_exceeded"
    assert "at least 8,000 tokens (40,000 bytes of text)" in error["message"]
    assert "max_model_len is 2,048" in error["message"]


def test_output_defaults_to_what_is_left_of_the_context(client, engine):
    client.chat("hi")
    client.complete("abcd", max_tokens=None)
    client.complete("abcd")
    chat, completion, default = engine.requests
    assert chat.sampling.max_tokens == 2048 - len(chat.prompt_token_ids)
    assert completion.sampling.max_tokens == 2044
    assert default.sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no body"),
        (b"{", "line 1 column"),
        (b'{"a": 1}x', "trailing characters at line 1 column 9"),
        (b"[1]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (b'{"prompt": "\xff"}', "not JSON"),
        (b'{"prompt": "\\ud800"}', "not JSON"),
        (b"[" * 50_000, "recursion limit"),
        (b'{"a":' * 10_000, "recursion limit"),
        (b'{"seed": ' + b"9" * 9000 + b"}", "number out of range"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(client, body, words):
    headers = {"content-type": "application/json"}
    response = client.request("POST", "/v1/completions", content=body, headers=headers)
    assert words in error_of(response)["message"]


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_400(body):
    def status_of(body: bytes) -> int:
        try:
            return 200 if isinstance(parse_json_object(body), dict) else 500
        except ApiError as error:
            json.loads(error.body())
            return error.status

    assert status_of(body) in (200, 400)


def test_the_body_has_a_limit(client):
    error = error_of(client.complete("x" * 100_001), status=413)
    assert "100,000 bytes" in error["message"]


def test_a_body_without_length_has_the_same_limit(client):
    async def parts():
        for _ in range(12):
            yield b" " * 10_000

    headers = {"content-type": "application/json"}
    response = client.request("POST", "/v1/completions", content=parts(), headers=headers)
    assert error_of(response, status=413)["code"] == "request_too_large"


def test_what_a_web_page_can_post_unasked_is_refused(client):
    headers = {"content-type": "text/plain"}
    response = client.request(
        "POST", "/v1/completions", content=b'{"prompt": "x"}', headers=headers
    )
    assert error_of(response, status=415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
)
def test_no_content_type_is_refused_like_a_wrong_one(client, path):
    response = client.request("POST", path, content=b'{"prompt": "x"}')
    error = error_of(response, status=415)
    assert error["message"] == "Content-Type is missing; it must be application/json"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_under_any_spelling_is_taken(client, kind):
    headers = {"content-type": kind}
    response = client.request(
        "POST", "/v1/completions", content=b'{"prompt": "x"}', headers=headers
    )
    assert response.status_code == 200


@pytest.mark.parametrize("unit", [b"[]", b"{}", b"0", b'""', b"[[]]"])
def test_more_values_than_can_be_read_at_once_are_refused(engine, make_client, unit):
    body = b'{"prompt": [' + b",".join([unit] * (8_000_000 // (len(unit) + 1))) + b"]}"
    client = make_client(engine)
    headers = {"content-type": "application/json"}
    begun = time.process_time()
    error = error_of(client.request("POST", "/v1/completions", content=body, headers=headers))
    assert time.process_time() - begun < 0.5
    assert "commas and brackets, but at most 262,144 are read" in error["message"]


def test_nulls_and_fields_of_others_change_nothing(client, engine):
    nulls = dict.fromkeys(
        ("temperature", "top_p", "n", "stop", "seed", "logit_bias", "tools", "tool_choice",
         "response_format", "stream", "stream_options", "max_tokens", "logprobs")
    )  # fmt: skip
    others = {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "zzz": 1}
    assert client.chat(**nulls, **others).status_code == 200
    assert client.chat().status_code == 200
    with_nulls, without = engine.requests
    assert with_nulls.sampling == without.sampling


def test_settings_reach_the_engine(client, engine):
    client.complete(
        "ab",
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        presence_penalty=-1,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        logit_bias={"65": -100, "66": 2.5},
        seed=7,
        n=2,
        stop=["x", "y", "x"],
        stop_token_ids=[10],
        max_tokens=9.0,
        min_tokens=3,
        ignore_eos=True,
        logprobs=2,
        skip_special_tokens=False,
    )
    first, second = engine.requests
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        0.5, 0.9, 0, 0.1,
    )  # fmt: skip
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-1.0, 1.5)
    assert sampling.repetition_penalty == 1.1
    assert sampling.logit_bias == ((65, -100.0), (66, 2.5))
    assert (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos) == (9, 3, True)
    assert sampling.logprobs == 2
    assert sampling.stop_token_ids == {10}
    assert first.stop == ("x", "y")
    assert not first.skip_special_tokens
    assert (sampling.seed, second.sampling.seed) == (7, 8)
    assert first.request_id != second.request_id


def test_a_temperature_too_small_to_divide_by_is_greedy(client, engine):
    client.complete(temperature=1e-300)
    assert engine.requests[0].sampling.is_greedy


@pytest.mark.parametrize("value", [0, 2, 0.7])
def test_numbers_at_their_limits_pass(client, engine, value):
    assert client.complete(temperature=value).status_code == 200
    assert math.isclose(engine.requests[0].sampling.temperature, value)


def test_an_unknown_model_is_404(client):
    error = error_of(client.chat(model="gpt-9"), status=404)
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    assert '"gpt-9"' in error["message"]
    assert "tiny" in error["message"]


def test_an_alias_answers_under_its_own_name(client):
    assert client.chat(model="gpt-tiny").json()["model"] == "gpt-tiny"
    assert client.chat(model=None).json()["model"] == "tiny"


def test_a_template_that_raises_is_the_callers_error(client):
    error = error_of(client.chat(messages=[{"role": "assistant", "content": "x"}]))
    assert error["param"] == "messages"
    assert error["code"] == "chat_template_error"
    assert "the assistant cannot speak first" in error["message"]


def test_a_model_without_template_points_to_completions(client, engine):
    engine.chat_template = None
    assert "/v1/completions" in error_of(client.chat())["message"]
    assert client.complete().status_code == 200
