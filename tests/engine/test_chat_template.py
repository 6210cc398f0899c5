"""Chat templates render like transformers' and fail with a sentence, never a traceback."""

from datetime import datetime

import pytest

from carpool.engine.chat_template import ChatTemplate, ChatTemplateError
from carpool.engine.tokenizer import Tokenizer
from carpool.engine.tools_prompt import messages_with_tools, tools_system_prompt

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "description": "é", "parameters": {}}}
ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/...') }}"
    "{% endif %}{{ m['content'] }}{% endfor %}"
)


def test_messages_become_a_prompt():
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}\n    [{{ m.role }}] {{ m.content }}{{ eos_token }}"
        "{% endfor %}\n{% if add_generation_prompt %}[assistant]{% endif %}\n",
        bos_token="<s>",
        eos_token="</s>",
    )
    assert template.render([USER]) == "<s>    [user] Hi</s>[assistant]"
    assert template.render([USER], add_generation_prompt=False) == "<s>    [user] Hi</s>"


def test_template_variables_pass_through_but_do_not_replace_the_messages():
    template = ChatTemplate(
        "{{ messages[0].content }} {{ enable_thinking }} {{ bos_token }}", "<s>"
    )
    assert template.render([USER], enable_thinking=False, bos_token="") == "Hi False "


def test_json_dates_and_loop_controls_work_like_in_transformers():
    source = (
        "{{ tools[0] | tojson }} {{ {'b': 1, 'a': [2]} | tojson(indent=1) }} "
        "{{ strftime_now('%d %b %Y') }} "
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{% generation %}!{% endgeneration %}"
    )
    template = ChatTemplate(source, now=lambda: datetime(2026, 3, 9))
    text = template.render([USER], tools=[{"name": "<é>"}])
    assert text == '{"name": "<é>"} {\n "b": 1,\n "a": [\n  2\n ]\n} 09 Mar 2026 01!'


def test_content_parts_and_missing_content_become_text():
    template = ChatTemplate("{% for m in messages %}{{ '[' + m['content'] + ']' }}{% endfor %}")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert template.render(messages) == "[one\ntwo][]"


def test_arguments_of_tool_calls_reach_the_template_as_objects():
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.city }}")
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"city": "Oslo"}'},
    }
    assert template.render([{"role": "assistant", "tool_calls": [call]}]) == "Oslo"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 'x' + 1 }}", "can only concatenate str"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
        ("{{ missing.more }}", "'missing' is undefined"),
        ("{{ [].__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages | tojson('a', 'b', 'c', 'd', 'e') }}", "positional arguments"),
        ("{{ {1: messages[0]}[2].x }}", "has no"),
        ("{{ 9 ** 9 ** 9 ** 9 }}", "too large"),
        ("{{ 'x' * 1000000000 }}", "over 4000000 long"),
        ("{{ 'x' * 'y' }}", "multiply"),
        ("{% for i in range(1000000000) %}{% endfor %}", "Range too big"),
    ],
)
def test_whatever_fails_in_a_template_is_one_error_with_its_words(source, message):
    with pytest.raises(ChatTemplateError, match=f"(?s)messages: .*{message}"):
        ChatTemplate(source).render([USER])


def test_roles_out_of_order_are_refused_in_the_templates_words():
    template = ChatTemplate(ALTERNATING)
    assert template.render([USER, {"role": "assistant", "content": "Ho"}]) == "HiHo"
    with pytest.raises(ChatTemplateError, match="roles must alternate user/assistant"):
        template.render([USER, USER])


def test_a_prompt_without_end_is_cut_off():
    endless = "{% for i in range(9999) %}{% for j in range(9999) %}{{ i }}{% endfor %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match="over 1000 characters"):
        ChatTemplate(endless, max_chars=1000).render([USER])


def test_a_broken_template_is_refused_when_it_is_loaded():
    with pytest.raises(ChatTemplateError, match="template is broken"):
        ChatTemplate("{% if %}")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            {"content": [{"type": "image_url", "image_url": {}}]},
            r"content\[0\] is of type 'image_url'",
        ),
        ({"content": [{"type": "text"}]}, r"messages\[0\]\.content\[0\]"),
        ({"content": {"text": "x"}}, r"messages\[0\]\.content must be a string"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "arguments is not JSON"),
        ({"tool_calls": ["f"]}, r"tool_calls\[0\]\.function must have a name"),
    ],
)
def test_messages_of_the_wrong_shape_are_named(message, expected):
    with pytest.raises(ChatTemplateError, match=expected):
        ChatTemplate("{{ messages }}").render([{"role": "user", **message}])


def test_a_template_says_whether_it_knows_tools():
    assert ChatTemplate("{% if tools %}{{ tools }}{% endif %}").supports_tools
    assert not ChatTemplate("{{ messages }} tools").supports_tools


def test_tools_are_told_in_messages_where_the_template_knows_none():
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be kind."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    assert messages_with_tools(messages, [TOOL]) == [
        {"role": "system", "content": "Be kind.\n\n" + tools_system_prompt([TOOL])},
        USER,
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        },
        {"role": "user", "content": "<tool_response>\n42\n</tool_response>"},
    ]
    assert '"description": "é"' in tools_system_prompt([TOOL])
    assert messages_with_tools([USER], [TOOL])[0]["role"] == "system"
    assert messages_with_tools([USER], []) == [USER]


@pytest.mark.model
def test_the_demo_models_template_gives_one_token_per_marker(demo_tokenizer: Tokenizer):
    config = demo_tokenizer.config
    assert config.chat_template is not None
    template = ChatTemplate(config.chat_template, config.bos_token, config.eos_token)
    prompt = template.render([{"role": "system", "content": "S"}, USER])
    assert prompt == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert demo_tokenizer.encode(prompt).count(1) == 3
    assert not template.supports_tools
