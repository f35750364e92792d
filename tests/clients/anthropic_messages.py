#!/usr/bin/env python3
"""The official Anthropic SDK as a client. --base-url has no /v1."""

import sys

from anthropic import Anthropic

from client_run import parse_args, run_modes

MESSAGES = [{"role": "user", "content": "hi"}]
args = parse_args(__doc__, ["json", "stream", "count_tokens"], ["json", "stream"])
client = Anthropic(
    base_url=args.base_url,
    api_key=args.key,
    # What the product retries must not be blurred by what the SDK retries.
    max_retries=0,
    timeout=args.timeout,
    default_headers=args.header,
)


def messages(model, progress):
    raw = client.messages.with_raw_response.create(model=model, max_tokens=64, messages=MESSAGES)
    message = raw.parse()
    progress.add(message.content[0].text)
    assert message.content[0].text, "no text"
    assert message.stop_reason == "end_turn", message.stop_reason
    assert message.usage.output_tokens > 0, "no usage"
    usage = [message.usage.input_tokens, message.usage.output_tokens]
    return {"usage": usage, "headers": dict(raw.headers)}


def messages_stream(model, progress):
    with client.messages.stream(model=model, max_tokens=64, messages=MESSAGES) as stream:
        for text in stream.text_stream:
            progress.add(text)
        message = stream.get_final_message()
        headers = dict(stream.response.headers)
    assert progress.chunks > 0, "no chunk"
    # The SDK gives a message also when the stream just ended; only this tells that it was complete.
    assert message.stop_reason == "end_turn", f"stop reason {message.stop_reason}"
    assert message.content[0].text == progress.text, "deltas and final text differ"
    usage = [message.usage.input_tokens, message.usage.output_tokens]
    return {"usage": usage, "headers": headers}


def count_tokens(model, _progress):
    counted = client.messages.count_tokens(model=model, messages=MESSAGES)
    assert counted.input_tokens > 0, counted
    return {"usage": counted.input_tokens}


modes = {"json": messages, "stream": messages_stream, "count_tokens": count_tokens}
sys.exit(run_modes(args, modes))
