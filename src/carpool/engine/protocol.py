"""What requests of the OpenAI API have in common.

Fields that are not named here are ignored: OpenAI's that change nothing in this engine
(`user`, `metadata`, `store`, `service_tier`, ...) and those of other servers.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from carpool.engine.errors import invalid
from carpool.engine.fields import LOGIT_BIAS, REQUEST_ID, SCHEMA, STOP_STRINGS, number, whole

MAX_N = 128
MAX_LOGPROBS = 20


class ApiModel(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, populate_by_name=True)


class StreamOptions(ApiModel):
    include_usage: bool | None = None


class JsonSchemaFormat(ApiModel):
    name: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class ResponseFormat(ApiModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and (
            self.json_schema is None or self.json_schema.json_schema is None
        ):
            raise invalid(
                'response_format.json_schema.schema is missing; type "json_schema" needs it',
                "response_format.json_schema.schema",
            )
        return self


class StructuredOutputs(ApiModel):
    json_schema: Annotated[dict[str, Any] | str | None, SCHEMA] = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class GenerationFields(ApiModel):
    """Sampling, streaming and structured output. A null field has its default."""

    model: str | None = None
    request_id: Annotated[str | None, REQUEST_ID] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    n: Annotated[int | None, whole(1, MAX_N)] = None
    min_tokens: Annotated[int | None, whole(0)] = None
    temperature: Annotated[float | None, number(0, 2)] = None
    top_p: Annotated[float | None, number(0, 1, above=True)] = None
    top_k: Annotated[int | None, whole(-1, 2**31 - 1)] = None
    min_p: Annotated[float | None, number(0, 1)] = None
    presence_penalty: Annotated[float | None, number(-2, 2)] = None
    frequency_penalty: Annotated[float | None, number(-2, 2)] = None
    repetition_penalty: Annotated[float | None, number(0.01, 100)] = None
    logit_bias: Annotated[tuple[tuple[int, float], ...], LOGIT_BIAS] = ()
    seed: Annotated[int | None, whole(-(2**63), 2**63 - 1)] = None
    stop: Annotated[tuple[str, ...], STOP_STRINGS] = ()
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Annotated[dict[str, Any] | str | None, SCHEMA] = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @model_validator(mode="after")
    def _streams_if_it_says_how(self) -> "GenerationFields":
        if self.stream_options is not None and not self.stream:
            raise invalid(
                "stream_options is set, but stream is not true; set both or neither",
                "stream_options",
            )
        return self

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)
