#!/usr/bin/env python3
"""The official OpenAI SDK as a client. --base-url ends in /v1."""

import sys

from openai import OpenAI

from client_run import parse_args, run_modes


class InBandError(Exception):
    """The stream held an error event, which the SDK hands on like any other."""

    def __init__(self, event):
        super().__init__(f"in-band error: {event}")
        self.body = event.to_dict()
        self.code = event.response.error.code if event.type == "response.failed" else event.code


MESSAGES = [{"role": "user", "content": "hi"}]
MODES = [
    "json",
    "stream",
    "responses",
    "responses_stream",
    "embeddings",
    "models",
    "stream_helper",
    "responses_helper",
    "completions",
    "completions_stream",
    "input_tokens",
]
args = parse_args(__doc__, MODES, ["json", "stream"])
client = OpenAI(
    base_url=args.base_url,
    api_key=args.key,
    # What the product retries must not be blurred by what the SDK retries.
    max_retries=0,
    timeout=args.timeout,
    default_headers=args.header,
)


def chat(model, progress):
    raw = client.chat.completions.with_raw_response.create(model=model, messages=MESSAGES)
    completion = raw.parse()
    choice = completion.choices[0]
    progress.add(choice.message.content)
    assert choice.message.content, "no text"
    assert choice.finish_reason == "stop", choice.finish_reason
    assert completion.usage.total_tokens > 0, "no usage"
    return {"usage": completion.usage.total_tokens, "headers": dict(raw.headers)}


def chat_stream(model, progress):
    usage = finish = None
    with client.chat.completions.with_raw_response.create(
        model=model, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ).parse() as stream:
        for chunk in stream:
            if chunk.choices:
                if chunk.choices[0].delta.content:
                    progress.add(chunk.choices[0].delta.content)
                finish = chunk.choices[0].finish_reason or finish
            if chunk.usage:
                usage = chunk.usage.total_tokens
        headers = dict(stream.response.headers)
    assert progress.chunks > 0, "no chunk"
    assert finish == "stop", f"finish reason {finish}"
    assert usage, "no usage"
    return {"usage": usage, "headers": headers}


def responses(model, progress):
    response = client.responses.create(model=model, input="hi")
    progress.add(response.output_text)
    assert response.output_text, "no text"
    assert response.status == "completed", response.status
    assert response.usage.output_tokens > 0, "no usage"
    return {"usage": response.usage.total_tokens}


def responses_stream(model, progress):
    completed = None
    with client.responses.create(model=model, input="hi", stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                progress.add(event.delta)
            elif event.type == "response.completed":
                completed = event.response
            elif event.type in ("error", "response.failed"):
                raise InBandError(event)
    assert completed is not None, "the stream did not complete"
    assert completed.output_text == progress.text, "deltas and final text differ"
    return {"usage": completed.usage.total_tokens}


def embeddings(model, progress):
    answer = client.embeddings.create(model=model, input=["a", "b"])
    assert len(answer.data) == 2, len(answer.data)
    assert all(isinstance(number, float) for number in answer.data[0].embedding)
    return {"usage": answer.usage.total_tokens, "dimensions": len(answer.data[0].embedding)}


def models(_model, _progress):
    names = [listed.id for listed in client.models.list()]
    assert names, "no models"
    return {"models": names}


def stream_helper(model, progress):
    """The helper adds up what the chunks say, and is strict about them."""
    empty = 0
    with client.chat.completions.stream(model=model, messages=MESSAGES) as stream:
        for event in stream:
            if event.type == "content.delta":
                progress.add(event.delta)
            elif event.type == "chunk" and event.chunk.choices:
                choice = event.chunk.choices[0]
                empty += not choice.delta.to_dict() and choice.finish_reason is None
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == progress.text, "deltas and final text differ"
    assert completion.choices[0].finish_reason == "stop", completion.choices[0].finish_reason
    return {"empty": empty}


def responses_helper(model, progress):
    """The helper knows the life of a response, and refuses events that do not fit into it."""
    in_progress, numbers = 0, []
    with client.responses.stream(model=model, input="hi") as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                progress.add(event.delta)
            elif event.type == "response.in_progress":
                assert event.response.status == "in_progress", event
                in_progress += 1
        response = stream.get_final_response()
    assert response.output_text == progress.text, "deltas and final text differ"
    assert numbers == sorted(numbers), numbers
    return {"in_progress": in_progress}


def completions(model, progress):
    completion = client.completions.create(model=model, prompt="hi")
    progress.add(completion.choices[0].text)
    assert completion.choices[0].text, "no text"
    assert completion.choices[0].finish_reason == "stop", completion.choices[0].finish_reason
    return {"usage": completion.usage.total_tokens}


def completions_stream(model, progress):
    finish = None
    with client.completions.create(model=model, prompt="hi", stream=True) as stream:
        for chunk in stream:
            if chunk.choices[0].text:
                progress.add(chunk.choices[0].text)
            finish = chunk.choices[0].finish_reason or finish
    assert progress.chunks > 0, "no chunk"
    assert finish == "stop", f"finish reason {finish}"
    return {}


def input_tokens(model, _progress):
    counted = client.responses.input_tokens.count(model=model, input="hi")
    assert counted.input_tokens > 0, counted
    return {"usage": counted.input_tokens}


functions = [
    chat,
    chat_stream,
    responses,
    responses_stream,
    embeddings,
    models,
    stream_helper,
    responses_helper,
    completions,
    completions_stream,
    input_tokens,
]
sys.exit(run_modes(args, dict(zip(MODES, functions, strict=True))))
