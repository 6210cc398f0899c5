"""Chat completions as OpenAI shapes them, whole and streamed."""

import pytest

from carpool.engine.chat_template import ChatTemplate
from carpool.engine.tool_calls import ToolCallStyle
from carpool.scheduling.request import FinishReason

TOOL = {"type": "function", "function": {"name": "move", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "move", "arguments": {"to": "e4"}}\n</tool_call>'


def test_one_body_holds_the_whole_answer(client, engine, script):
    engine.script = script("Hel", "lo", stop_reason="\n", num_cached=1)
    body = client.chat("hi").json()
    num_prompt = len(engine.requests[0].prompt_token_ids)
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": "\n",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 5,
        "total_tokens": num_prompt + 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_messages_reach_the_template(client, engine):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    client.chat(messages=messages)
    prompt = bytes(engine.requests[0].prompt_token_ids).decode()
    assert prompt == "<system>be brief\n<user>a\nb\n<assistant>"


def test_a_stream_opens_with_the_role_and_closes_with_the_reason(client, engine, script, events):
    engine.script = script("Hel", "", "lo", finish=FinishReason.LENGTH)
    *chunks, done = events(client.chat(stream=True))
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [
        *[None] * 3,
        "length",
    ]
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_comes_last_and_is_null_before(client, engine, script, events):
    engine.script = script("a", "b", num_cached=2)
    response = client.chat(stream=True, stream_options={"include_usage": True})
    *chunks, last, done = events(response)
    assert done == "[DONE]"
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("text", ["é", "👩‍👩‍👧", '"\\\n\x00\u2028', "한국어"])
def test_any_text_survives_the_stream(client, engine, script, events, text):
    engine.script = script(text, text)
    *chunks, _ = events(client.chat(stream=True))
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == text + text
    assert client.chat().json()["choices"][0]["message"]["content"] == text + text


def test_logprobs_come_with_the_tokens(client, engine, script, events):
    engine.script = script("a", "", "é")
    fields = {"logprobs": True, "top_logprobs": 2}
    whole = client.chat(**fields).json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in whole] == [[97], [0xC3], [0xA9]]
    assert whole[0]["token"] == "a"
    assert whole[0]["logprob"] == -0.5
    assert whole[0]["top_logprobs"] == [
        {"token": "a", "logprob": -0.5, "bytes": [97]},
        {"token": "?", "logprob": -9999.0, "bytes": [63]},
    ]
    *chunks, _ = events(client.chat(stream=True, **fields))
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part for entry in part["content"]] == whole


def test_logprobs_alone_have_no_alternatives(client, engine):
    content = client.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[]] * 5
    assert engine.requests[0].sampling.logprobs == 0


def test_choices_are_told_apart_by_their_index(client, engine, script, events):
    engine.script = lambda request: script(request.request_id[-1], "!")(request)
    body = client.chat(n=3).json()
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == ["0!", "1!", "2!"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 6
    assert body["usage"]["prompt_tokens"] == len(engine.requests[0].prompt_token_ids)
    streamed = ["", "", ""]
    for chunk in events(client.chat(n=3, stream=True))[:-1]:
        choice = chunk["choices"][0]
        streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == texts


def joined_calls(chunks):
    """Content, tool calls and finish reason of a stream, put together as clients do."""
    content, calls, reason = "", [], None
    for chunk in chunks:
        choice = chunk["choices"][0]
        content += choice["delta"].get("content") or ""
        reason = choice["finish_reason"] or reason
        for part in choice["delta"].get("tool_calls", []):
            if "id" in part:
                assert part["index"] == len(calls)
                calls.append({"id": part["id"], "type": part["type"], **part["function"]})
            else:
                calls[part["index"]]["arguments"] += part["function"]["arguments"]
    return content, calls, reason


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_tool_calls_are_parsed_wherever_the_text_is_cut(client, engine, script, events, step):
    text = f"Let me see.\n{CALL}\n{CALL}"
    engine.script = script(*(text[i : i + step] for i in range(0, len(text), step)))
    message = client.chat(tools=[TOOL]).json()["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    assert message["message"]["content"] == "Let me see."
    functions = [call["function"] for call in message["message"]["tool_calls"]]
    assert functions == [{"name": "move", "arguments": '{"to": "e4"}'}] * 2

    content, calls, reason = joined_calls(events(client.chat(tools=[TOOL], stream=True))[:-1])
    assert (content, reason) == ("Let me see.", "tool_calls")
    assert [(call["name"], call["arguments"]) for call in calls] == [("move", '{"to": "e4"}')] * 2
    assert len({call["id"] for call in calls}) == 2


def test_a_call_alone_has_no_content(client, engine, script):
    engine.script = script(CALL, "")
    assert client.chat(tools=[TOOL]).json()["choices"][0]["message"]["content"] is None


def test_without_parallel_calls_only_the_first_is_passed_on(client, engine, script, events):
    engine.script = script(CALL, CALL)
    fields = {"tools": [TOOL], "parallel_tool_calls": False}
    assert len(client.chat(**fields).json()["choices"][0]["message"]["tool_calls"]) == 1
    assert len(joined_calls(events(client.chat(stream=True, **fields))[:-1])[1]) == 1


def test_a_call_cut_by_the_limit_says_length(client, engine, script):
    engine.script = script(CALL[:50], "", finish=FinishReason.LENGTH)
    assert client.chat(tools=[TOOL]).json()["choices"][0]["finish_reason"] == "length"


def test_text_that_looks_like_a_call_is_content_without_tools(client, engine, script):
    engine.script = script(CALL, "")
    assert client.chat().json()["choices"][0]["message"]["content"] == CALL
    choice = client.chat(tools=[TOOL], tool_choice="none").json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


def test_a_template_with_tools_gets_them_and_its_style_is_parsed(client, engine, script):
    engine.chat_template = ChatTemplate("{{ tools[0].function.name }}:{{ messages[0].content }}")
    engine.tool_call_style = ToolCallStyle.LLAMA3
    engine.script = script('<|python_tag|>{"name": "move", "parameters": {}}', "")
    choice = client.chat("hi", tools=[TOOL]).json()["choices"][0]
    assert bytes(engine.requests[0].prompt_token_ids) == b"move:hi"
    assert not engine.requests[0].skip_special_tokens
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "move", "arguments": "{}"}


def test_the_results_of_tools_can_be_sent_back(client, engine):
    call = {"id": "c1", "type": "function", "function": {"name": "move", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "play"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    assert client.chat(messages=messages).status_code == 200
    prompt = bytes(engine.requests[0].prompt_token_ids).decode()
    assert '"name": "move"' in prompt
    assert "<tool_response>\ndone\n</tool_response>" in prompt


def test_template_variables_pass_through(client, engine):
    engine.chat_template = ChatTemplate("{{ enable_thinking }}")
    client.chat(chat_template_kwargs={"enable_thinking": 5})
    assert bytes(engine.requests[0].prompt_token_ids) == b"5"
