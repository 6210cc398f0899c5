"""Text completions as OpenAI shapes them, whole and streamed."""

from carpool.scheduling.request import FinishReason


def test_one_body_holds_the_whole_answer(client, engine, script):
    engine.script = script("Hel", "lo", finish=FinishReason.LENGTH)
    body = client.complete("ab").json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "index": 0,
            "text": "Hello",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["total_tokens"] == 7


def test_a_stream_has_the_same_text(client, engine, script, events):
    engine.script = script("Hel", "", "lo")
    response = client.complete(stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = events(response)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hel", "lo"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]
    assert usage["usage"]["completion_tokens"] == 5
    assert usage["choices"] == []


def test_every_kind_of_prompt_is_understood(client, engine):
    client.complete("ab")
    client.complete(["ab", "c"])
    client.complete([97, 98])
    client.complete([[97, 98], [99]])
    client.complete([[97, 98], "c"])
    prompts = [request.prompt_token_ids for request in engine.requests]
    assert prompts == [(97, 98), (97, 98), (99,), (97, 98), (97, 98), (99,), (97, 98), (99,)]


def test_choices_follow_prompt_after_prompt(client, engine, script):
    engine.script = lambda request: script(chr(request.prompt_token_ids[0]).upper(), "")(request)
    body = client.complete(["a", "b"], n=2).json()
    assert [choice["text"] for choice in body["choices"]] == ["A", "A", "B", "B"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 4


def test_logprobs_are_parallel_lists(client, engine, script, events):
    engine.script = script("ab", "c")
    whole = client.complete(logprobs=2).json()["choices"][0]["logprobs"]
    assert whole == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [-0.5] * 3,
        "tokens": ["a", "b", "c"],
        "top_logprobs": [{token: -0.5, "?": -9999.0} for token in "abc"],
    }
    *chunks, _ = events(client.complete(logprobs=2, stream=True))
    streamed = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks]
    assert streamed == [[0, 1], [2]]


def test_echo_puts_the_prompt_in_front(client, engine, script, events):
    engine.script = script("c", "d")
    choice = client.complete("ab", echo=True).json()["choices"][0]
    assert (choice["text"], choice["logprobs"]) == ("abcd", None)
    assert client.complete([97, 98], echo=True).json()["choices"][0]["text"] == "abcd"
    *chunks, _ = events(client.complete("ab", echo=True, stream=True))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["abc", "d"]


def test_echo_with_logprobs_scores_the_prompt(client, engine, script, events):
    engine.script = script("c", "d")
    logprobs = client.complete("ab", echo=True, logprobs=1).json()["choices"][0]["logprobs"]
    assert engine.requests[0].sampling.prompt_logprobs == 1
    assert logprobs["tokens"] == ["a", "b", "c", "d"]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert logprobs["top_logprobs"][:2] == [None, {"b": -0.5}]
    first = events(client.complete("ab", echo=True, logprobs=1, stream=True))[0]
    assert first["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]


def test_echo_without_output_scores_the_prompt_alone(client, engine, script):
    engine.script = script("c", "")
    body = client.complete("ab", echo=True, logprobs=0, max_tokens=0).json()
    assert engine.requests[0].sampling.max_tokens == 1
    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["logprobs"]["tokens"] == ["a", "b"]
    assert body["usage"]["completion_tokens"] == 0
