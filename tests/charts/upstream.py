"""A provider with an account for each way to behave: run by `test_scaling.py` as a pod of its own.

Arguments: port, and a file that each call is told to: account, status, begin and end (monotonic seconds), and how many
calls of the account ran with it. A call ends before the last of its answer is sent: whoever reads that may begin the next.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

# How long an answer takes, in seconds.
ANSWER_TIME = 0.02
# A failure takes long enough that two probes would be seen at once.
FAILURE_TIME = 0.3
PIECES = 6
# Of a stream of the model `m`, and of one that outlives the time in which its data plane leaves the Service.
PIECE_TIME = {"m": 0.04, "long": 0.45}
WORD = "pong"

USAGE = {"prompt_tokens": 3, "completion_tokens": PIECES, "total_tokens": 3 + PIECES}
WHOLE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": WORD * PIECES}, "finish_reason": "stop"}],
    "usage": USAGE,
}

running: Counter[str] = Counter()


class Call:
    """A call of an account, told to the file when it has ended."""

    def __init__(self, account: str, log):
        self.account, self.log, self.begun = account, log, time.monotonic()
        running[account] += 1
        self.at_once = running[account]

    def ends(self, status: int):
        running[self.account] -= 1
        told = {"account": self.account, "status": status, "at_once": self.at_once}
        print(json.dumps({**told, "from": self.begun, "to": time.monotonic()}), file=self.log, flush=True)


def head(status: str, *headers: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *headers, "")).encode()


def whole(status: str, value: dict, *headers: str) -> bytes:
    body = json.dumps(value).encode()
    return head(status, "content-type: application/json", f"content-length: {len(body)}", *headers) + body


def chunk(text: str) -> bytes:
    data = text.encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(delta: dict, finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    value = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return chunk(f"data: {json.dumps(value)}\n\n")


def error(message: str) -> dict:
    return {"error": {"message": message, "type": "server_error", "code": None}}


async def answer(account: str, body: dict, writer: asyncio.StreamWriter, log):
    call = Call(account, log)
    if account == "failing":
        await asyncio.sleep(FAILURE_TIME)
        call.ends(500)
        writer.write(whole("500 Internal Server Error", error("nothing works here")))
    elif account == "exhausted":
        await asyncio.sleep(ANSWER_TIME)
        call.ends(429)
        writer.write(whole("429 Too Many Requests", error("slow down"), "retry-after: 600"))
    elif body.get("stream"):
        writer.write(head("200 OK", "content-type: text/event-stream", "transfer-encoding: chunked"))
        for _ in range(PIECES):
            await asyncio.sleep(PIECE_TIME[body["model"]])
            writer.write(event({"content": WORD}, None))
            await writer.drain()
        call.ends(200)
        writer.write(event({}, "stop") + chunk("data: [DONE]\n\n") + b"0\r\n\r\n")
    else:
        await asyncio.sleep(ANSWER_TIME)
        call.ends(200)
        writer.write(whole("200 OK", WHOLE))
    await writer.drain()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log):
    try:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            account = headers["authorization"].removeprefix("Bearer key-of-")
            await answer(account, body, writer, log)
    except (asyncio.IncompleteReadError, ConnectionError):
        # Its pool lets a connection go.
        writer.close()


async def main():
    port, path = int(sys.argv[1]), sys.argv[2]
    with open(path, "a") as log:
        server = await asyncio.start_server(lambda reader, writer: serve(reader, writer, log), "0.0.0.0", port)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
