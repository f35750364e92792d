#!/usr/bin/env python3
"""The wire of a stream, not an SDK's view of it. --base-url ends in /v1.

`openai`: every event is JSON until [DONE], which is last; a usage chunk came; HTTP ended as it should.
`anthropic`: events in the order that the API documents, message_stop last; HTTP ended as it should.
"""

import json
import sys

import httpx
from httpx_sse import connect_sse

from client_run import parse_args, run_modes

MESSAGES = [{"role": "user", "content": "hi"}]
args = parse_args(__doc__, ["openai", "anthropic"], ["openai"])
# No proxy of the machine: everything here is on the loopback interface.
client = httpx.Client(timeout=args.timeout, trust_env=False, headers=args.header)


class InBandError(Exception):
    """The stream held an error event."""

    def __init__(self, body):
        super().__init__(json.dumps(body))
        self.body = body


def events(path, headers, body):
    """The events of a stream whose head is as it should be."""
    with connect_sse(client, "POST", args.base_url + path, headers=headers, json=body) as source:
        if source.response.status_code != 200:
            source.response.read()
            source.response.raise_for_status()
        content_type = source.response.headers["content-type"].split(";")[0]
        assert content_type == "text/event-stream", content_type
        yield from source.iter_sse()


def openai(model, progress):
    done, usage, finish = False, None, None
    body = {
        "model": model,
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"authorization": f"Bearer {args.key}"}
    for event in events("/chat/completions", headers, body):
        assert not done, "an event after [DONE]"
        if event.data == "[DONE]":
            done = True
            continue
        data = json.loads(event.data)
        if "error" in data:
            raise InBandError(data)
        for choice in data["choices"]:
            finish = choice["finish_reason"] or finish
            if choice["delta"].get("content"):
                progress.add(choice["delta"]["content"])
        usage = data.get("usage") or usage
    assert done, "no [DONE]"
    assert finish == "stop", f"finish reason {finish}"
    assert usage, "no usage"
    return {"usage": usage}


def anthropic(model, progress):
    names = []
    body = {"model": model, "messages": MESSAGES, "max_tokens": 64, "stream": True}
    headers = {"x-api-key": args.key, "anthropic-version": "2023-06-01"}
    for event in events("/messages", headers, body):
        assert "message_stop" not in names, "an event after message_stop"
        data = json.loads(event.data)
        assert data["type"] == event.event, f"event {event.event} holds {data['type']}"
        if event.event == "error":
            raise InBandError(data)
        if event.event == "content_block_delta":
            progress.add(data["delta"]["text"])
        if event.event != "ping" and names[-1:] != [event.event]:
            names.append(event.event)
    expected = "message_start content_block_start content_block_delta content_block_stop message_delta message_stop"
    assert names == expected.split(), names
    return {"events": names}


sys.exit(run_modes(args, {"openai": openai, "anthropic": anthropic}))
