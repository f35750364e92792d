"""Clients of a fleet, and the Service that they go through: run by `test_scaling.py` as a pod of its own.

Argument: a folder. `load.json` says who asks what, `pods.json` which pods there are, as often as it changes, and until
when; what happened is told to `told.jsonl`. The Service does what kube-proxy does: each *connection* goes to the next pod
that is ready, and stays there. Readiness is asked for as the kubelet does, by the pods' own probe.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

LOOK_EVERY = 0.05
# The kubelet's own pace until a pod is ready for the first time; then that of the probe.
UNREADY_EVERY = 0.2
REQUEST_LIMIT = 60


@dataclass
class Pod:
    name: str
    address: str
    ready: bool = False
    leaving: bool = False


@dataclass
class Connection:
    pod: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    uses: int = 0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Lost(Exception):
    """A connection that was used before ended before anything of an answer came: every HTTP client asks again."""


@dataclass
class Load:
    folder: Path
    spec: dict
    pods: dict[str, Pod] = field(default_factory=dict)
    turn: int = 0
    ends: bool = False

    def tell(self, **what):
        print(json.dumps(what), file=self.told, flush=True)

    async def run(self):
        with open(self.folder / "told.jsonl", "a") as self.told:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.look(tasks))
                for client in self.spec["clients"]:
                    for _ in range(client["count"]):
                        tasks.create_task(self.ask_for_ever(client))

    async def look(self, tasks: asyncio.TaskGroup):
        """Follows which pods there are."""
        while not self.ends:
            now = json.loads((self.folder / "pods.json").read_text())
            self.ends = now["ends"]
            for one in now["pods"]:
                pod = self.pods.get(one["name"])
                if pod is None:
                    pod = self.pods[one["name"]] = Pod(one["name"], one["address"])
                    tasks.create_task(self.probe(pod))
                pod.leaving = one["leaving"]
            await asyncio.sleep(LOOK_EVERY)

    async def probe(self, pod: Pod):
        probe, failures = self.spec["probe"], 0
        while not (self.ends or pod.leaving):
            connection = None
            try:
                async with asyncio.timeout(probe["timeout"]):
                    connection = await connect(pod, probe["port"])
                    answer = await exchange(connection, request("GET", probe["path"], {"connection": "close"}, b""))
                good = answer.status == 200
            except (OSError, EOFError, TimeoutError, ConnectionError):
                good = False
            finally:
                if connection:
                    connection.writer.close()
            failures = 0 if good else failures + 1
            if good and not pod.ready:
                self.tell(what="ready", pod=pod.name, at=time.monotonic())
            pod.ready = good or (pod.ready and failures < probe["failures"])
            await asyncio.sleep(probe["period"] if pod.ready else UNREADY_EVERY)

    async def endpoint(self) -> Pod:
        while True:
            there = [pod for pod in self.pods.values() if pod.ready and not pod.leaving]
            if there:
                self.turn += 1
                return there[self.turn % len(there)]
            await asyncio.sleep(LOOK_EVERY)

    async def ask_for_ever(self, client: dict):
        connection = None
        while not self.ends:
            connection = await self.ask(client, connection)
            await asyncio.sleep(client["pause"])

    async def ask(self, client: dict, connection: Connection | None) -> Connection | None:
        """One request; the connection if it can be used again."""
        begun, lost = time.monotonic(), 0
        told = {"what": "request", "client": client["name"], "from": begun}
        try:
            async with asyncio.timeout(REQUEST_LIMIT):
                while True:
                    if connection is None or connection.reader.at_eof():
                        connection = await connect(await self.endpoint(), self.spec["port"])
                    try:
                        answer = await exchange(connection, self.question(client))
                        break
                    except Lost:
                        lost, connection = lost + 1, None
            problem = wrong(client, answer)
            told |= {"pod": connection.pod, "status": answer.status, "id": answer.headers.get("x-omniroute-request-id")}
        except (OSError, EOFError, TimeoutError, ConnectionError) as broken:
            problem = f"{type(broken).__name__}: {broken}"
            told |= {"pod": connection.pod if connection else None, "status": 0}
            answer = None
        self.tell(**told, to=time.monotonic(), problem=problem, lost=lost)
        if connection is None:
            return None
        connection.uses += 1
        if answer is None or answer.headers.get("connection") == "close" or connection.uses >= client["uses"]:
            connection.writer.close()
            return None
        return connection

    def question(self, client: dict) -> bytes:
        body = {"model": client["model"], "stream": client["stream"], "messages": [{"role": "user", "content": "ping"}]}
        headers = {"authorization": f"Bearer {self.spec['key']}", "content-type": "application/json"}
        return request("POST", "/v1/chat/completions", headers, json.dumps(body).encode())


def wrong(client: dict, answer: Answer) -> str | None:
    """What a client would complain about."""
    text = answer.body.decode(errors="replace")
    if answer.status != 200:
        return f"{answer.status}: {text[:300]}"
    if client["stream"] and not (text.endswith("data: [DONE]\n\n") and text.count("pong") == 6):
        return f"a stream that is not whole: {text[-300:]}"
    if not client["stream"] and json.loads(text)["choices"][0]["message"]["content"] != "pong" * 6:
        return f"another answer: {text[:300]}"
    return None


def request(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: tidegate", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + body


async def connect(pod: Pod, port: int) -> Connection:
    return Connection(pod.name, *await asyncio.open_connection(pod.address, port))


async def exchange(connection: Connection, question: bytes) -> Answer:
    reader = connection.reader
    try:
        connection.writer.write(question)
        first = await reader.readuntil(b"\r\n")
    except (ConnectionError, asyncio.IncompleteReadError) as broken:
        if connection.uses and not getattr(broken, "partial", b""):
            raise Lost from broken
        raise
    status = int(first.split()[1])
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Answer(status, headers, body)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    asyncio.run(Load(folder, json.loads((folder / "load.json").read_text())).run())
