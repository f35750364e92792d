#!/usr/bin/env python3
"""The official OpenAI SDK as a client. --base-url ends in /v1."""

import sys

from openai import OpenAI

from client_run import parse_args, run_modes

MESSAGES = [{"role": "user", "content": "hi"}]
MODES = ["json", "stream", "responses", "responses_stream", "embeddings", "models"]
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
                raise RuntimeError(f"in-band error: {event}")
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


functions = [chat, chat_stream, responses, responses_stream, embeddings, models]
sys.exit(run_modes(args, dict(zip(MODES, functions, strict=True))))
