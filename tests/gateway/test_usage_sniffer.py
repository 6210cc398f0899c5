import pytest
from mock_engine import DONE, chat_events, dumps, event, usage

from carpool.gateway.api_kind import ApiKind
from carpool.gateway.usage_sniffer import Usage, UsageSniffer, usage_request

ASKING = {"stream_options": {"include_usage": True}}


def sniff(kind: ApiKind, events: list[bytes], is_chunk_hidden: bool = False):
    sniffer = UsageSniffer(kind, is_chunk_hidden=is_chunk_hidden)
    return sniffer, [each for each in events if sniffer.see_event(each)]


@pytest.mark.parametrize("kind", [ApiKind.CHAT, ApiKind.COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"stream": True}, ASKING),
        ({"stream": True, "stream_options": None}, ASKING),
        ({"stream": True, "stream_options": {"include_usage": False}}, ASKING),
        ({"stream": True, **ASKING}, {}),
        ({"stream": False}, {}),
        ({}, {}),
        (
            {"stream": True, "stream_options": {"x": 1}},
            {"stream_options": {"x": 1, "include_usage": True}},
        ),
    ],
)
def test_usage_is_asked_for_where_a_stream_did_not(kind, fields, change):
    assert usage_request(kind, fields) == change


@pytest.mark.parametrize("kind", [ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.EMBEDDINGS])
def test_other_apis_report_unasked(kind):
    assert usage_request(kind, {"stream": True}) == {}


def test_the_usage_chunk_is_hidden_only_from_who_did_not_ask():
    events = chat_events(["a", "b"])
    usage_chunk = events[-2]

    assert sniff(ApiKind.CHAT, events, is_chunk_hidden=False)[1] == events
    assert sniff(ApiKind.CHAT, events, is_chunk_hidden=True)[1] == [
        each for each in events if each is not usage_chunk
    ]


def test_usage_within_the_last_chunk_with_choices_is_not_hidden():
    last = event({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage(3, 4)})
    sniffer, seen = sniff(ApiKind.CHAT, [last, DONE], is_chunk_hidden=True)
    assert seen == [last, DONE]
    assert sniffer.usage(99) == Usage(3, 0, 4, "reported")


def test_the_last_usage_that_is_not_null_counts():
    events = [
        event({"choices": [{"delta": {"content": "a"}}], "usage": usage(9, 1)}),
        event({"choices": [{"delta": {"content": "b"}}], "usage": usage(9, 2, cached=8)}),
        event({"choices": [{"delta": {"content": ""}}], "usage": None}),
    ]
    assert sniff(ApiKind.CHAT, events)[0].usage(50) == Usage(9, 8, 2, "reported")


def test_a_reported_zero_is_a_zero():
    events = [*chat_events(["a", "b"], has_usage=False)[:-1], event({"usage": usage(0, 0)})]
    assert sniff(ApiKind.CHAT, events)[0].usage(50) == Usage(0, 0, 0, "reported")


def test_without_a_report_the_chunks_of_text_are_counted():
    events = chat_events(["a", "", "b", 'say "content":"x"'], has_usage=False)
    assert sniff(ApiKind.CHAT, events)[0].usage(50) == Usage(50, 0, 3, "estimated")


def test_tool_calls_and_reasoning_count_as_text():
    calls = [{"index": 0, "function": {"arguments": '{"a'}}]
    events = [
        event({"choices": [{"delta": {"reasoning_content": "hm"}}]}),
        event({"choices": [{"delta": {"tool_calls": calls}}]}),
    ]
    assert sniff(ApiKind.CHAT, events)[0].num_text_chunks == 2


def messages_events(words: list[str]) -> list[bytes]:
    start = {"input_tokens": 10, "cache_read_input_tokens": 30, "output_tokens": 1}
    return [
        event({"type": "message_start", "message": {"usage": start}}, "message_start"),
        *(
            event(
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": word}},
                "content_block_delta",
            )
            for word in words
        ),
    ]


def test_messages_report_input_first_and_output_last():
    end = event({"type": "message_delta", "usage": {"output_tokens": 12}}, "message_delta")
    sniffer, _ = sniff(ApiKind.MESSAGES, [*messages_events(["a"]), end])
    assert sniffer.usage(5) == Usage(40, 30, 12, "reported")


def test_messages_that_were_cut_are_estimated_by_their_text():
    sniffer, _ = sniff(ApiKind.MESSAGES, messages_events(["a", "b", "c"]))
    assert sniffer.usage(5) == Usage(40, 30, 3, "estimated")


def test_responses_report_in_their_last_event():
    counts = {
        "input_tokens": 8,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 2,
    }
    events = [
        event({"type": "response.output_text.delta", "delta": "a"}, "response.output_text.delta"),
        event({"type": "response.completed", "response": {"usage": counts}}, "response.completed"),
    ]
    sniffer, _ = sniff(ApiKind.RESPONSES, events)
    assert sniffer.usage(5) == Usage(8, 4, 2, "reported")
    assert sniffer.num_text_chunks == 1


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (ApiKind.CHAT, {"usage": usage(3, 4, 2)}, Usage(3, 2, 4, "reported")),
        (ApiKind.CHAT, {"usage": None}, Usage(50, 0, 0, "estimated")),
        (ApiKind.CHAT, {"usage": {"prompt_tokens": -1}}, Usage(50, 0, 0, "estimated")),
        (ApiKind.CHAT, [], Usage(50, 0, 0, "estimated")),
        (
            ApiKind.EMBEDDINGS,
            {"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 6, "total_tokens": 6}},
            Usage(6, 0, 0, "reported"),
        ),
        (
            ApiKind.RESPONSES,
            {"usage": {"input_tokens": 1, "output_tokens": 2}},
            Usage(1, 0, 2, "reported"),
        ),
        (
            ApiKind.MESSAGES,
            {"usage": {"input_tokens": 1, "cache_creation_input_tokens": 5, "output_tokens": 2}},
            Usage(6, 0, 2, "reported"),
        ),
    ],
)
def test_the_usage_of_a_whole_body(kind, body, expected):
    sniffer = UsageSniffer(kind, is_chunk_hidden=False)
    sniffer.see_whole(dumps(body))
    assert sniffer.usage(50) == expected


@pytest.mark.parametrize(
    "piece",
    [b'data: {"usage": \n\n', b'data: "usage"\n\n', b'data: \xff"usage"\n\n', b'x"usage"\n\n'],
)
def test_what_is_no_json_goes_through(piece):
    sniffer, seen = sniff(ApiKind.CHAT, [piece], is_chunk_hidden=True)
    assert seen == [piece]
    assert sniffer.usage(1).source == "estimated"
