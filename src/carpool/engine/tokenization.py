"""/tokenize and /detokenize."""

from collections.abc import Mapping
from typing import Any

from carpool.engine.chat import render_chat
from carpool.engine.client import EngineClient
from carpool.engine.completion_protocol import DetokenizeRequest, TokenizeRequest
from carpool.engine.errors import invalid
from carpool.engine.messages import check_messages
from carpool.engine.prepared import validated
from carpool.engine.prompt_encoder import encode_prompt
from carpool.engine.request_builder import check_token_ids, require_model


def tokenize(engine: EngineClient, body: Mapping[str, Any]) -> dict[str, Any]:
    """Token ids of a prompt, or of the messages of a chat. Raises ApiError."""
    request = validated(TokenizeRequest, body)
    require_model(engine, request.model)
    if (request.prompt is None) == (request.messages is None):
        raise invalid("send either prompt or messages", "prompt")
    if request.prompt is not None:
        token_ids = encode_prompt(
            engine, request.prompt, "prompt", request.add_special_tokens is not False
        )
    else:
        token_ids = encode_prompt(engine, _chat_prompt(engine, request), "messages")
    answer: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": engine.max_model_len,
        "tokens": token_ids,
    }
    if request.return_token_strs:
        answer["token_strs"] = [engine.tokenizer.token_text(token_id) for token_id in token_ids]
    return answer


def detokenize(engine: EngineClient, body: Mapping[str, Any]) -> dict[str, Any]:
    """Text of token ids, special tokens included. Raises ApiError."""
    request = validated(DetokenizeRequest, body)
    require_model(engine, request.model)
    check_token_ids(request.tokens, engine.vocab_size, "tokens")
    return {"prompt": engine.tokenizer.decode(request.tokens, skip_special_tokens=False)}


def _chat_prompt(engine: EngineClient, request: TokenizeRequest) -> str:
    try:
        messages = check_messages(request.messages)
    except ValueError as error:
        raise invalid(str(error), "messages") from None
    return render_chat(
        engine,
        messages,
        request.tools or [],
        add_generation_prompt=request.add_generation_prompt,
        variables=request.chat_template_kwargs,
    )
