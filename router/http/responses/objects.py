"""Objects of `/v1/responses`, in OpenAI's shape."""

from typing import Any, Literal

from pydantic import Field

from router.http.chat_objects import ChatLogprob
from router.http.objects import ResponseModel, ServedTier

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(ResponseModel):
    """Text of a message, with the log-probabilities of its tokens if they are included; no annotations."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[str] = Field(default_factory=list)
    logprobs: list[ChatLogprob] = Field(default_factory=list)


class OutputHead(ResponseModel):
    """Base of the items of a response."""

    id: str
    status: ItemStatus


class OutputMessage(OutputHead):
    """Answer of the model."""

    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputCall(OutputHead):
    """A call of a tool; the arguments are JSON as text, which the model may have left invalid."""

    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str


class ReasoningText(ResponseModel):
    """Text of reasoning."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputReasoning(OutputHead):
    """Reasoning of the model; it has no summary."""

    type: Literal["reasoning"] = "reasoning"
    summary: list[str] = Field(default_factory=list)
    content: list[ReasoningText]


OutputItem = OutputMessage | OutputCall | OutputReasoning


class InputDetails(ResponseModel):
    """Input tokens by kind."""

    cached_tokens: int


class OutputDetails(ResponseModel):
    """Output tokens by kind."""

    reasoning_tokens: int


class ResponsesUsage(ResponseModel):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(ResponseModel):
    """Reason why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseError(ResponseModel):
    """Reason why a response failed."""

    code: str
    message: str


class ResponseObject(ResponseModel):
    """A response; the last fields repeat what was asked for.

    Warnings say what of the request has no effect.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem]
    usage: ResponsesUsage | None = None
    service_tier: ServedTier | None = None
    warnings: list[str] = Field(default_factory=list)
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    store: Literal[False] = False
    temperature: float | None = None
    text: dict[str, Any] = Field(default_factory=dict)
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = Field(default_factory=list)
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"

    def to_json(self) -> bytes:
        """Return UTF-8 JSON with all fields, as OpenAI sends them."""
        return self.__pydantic_serializer__.to_json(self)
