"""A machine with a network of its own, in which each pod has an address: started by `Machine` in `fleet.py`.

Runs as the first process of its own namespaces of processes and networks: everything in it ends with it, and nothing of
it is seen from outside. Reads one request in JSON a line and answers each with one line.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time

PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
BRIDGE = "pods"


def administer(*command: str):
    subprocess.run([shutil.which(command[0], path=PATH), *command[1:]], check=True)


def in_network_of(process: subprocess.Popen, *command: str):
    administer("nsenter", f"--net=/proc/{process.pid}/ns/net", "--", *command)


class Pods:
    def __init__(self):
        self.running: dict[str, subprocess.Popen] = {}
        self.links = 0
        administer("ip", "link", "set", "lo", "up")
        administer("ip", "link", "add", BRIDGE, "type", "bridge")
        administer("ip", "address", "add", "10.0.0.1/24", "dev", BRIDGE)
        administer("ip", "link", "set", BRIDGE, "up")

    def start(self, name: str, address: str, command: list[str], env: dict[str, str], log: str):
        """Starts a pod's process when its network is there: until then it waits for a word."""
        with open(log, "ab") as output:
            process = subprocess.Popen(
                [
                    shutil.which("unshare", path=PATH),
                    "--net",
                    "--",
                    "/bin/sh",
                    "-c",
                    'read word; exec "$@"',
                    "sh",
                    *command,
                ],
                env=env,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        # The namespace is made by the program that was started: until then the process is in ours.
        ours = network_of("self")
        while network_of(process.pid) == ours:
            time.sleep(0.01)
        # A name of its own each time: the kernel takes the links of a pod that ended away when it gets to it.
        self.links += 1
        outer, inner = f"out{self.links}", f"in{self.links}"
        # The same hardware address for the same pod: others take no new one within a second, and would go on sending to
        # the pod that ended for a minute. (In a cluster, a new pod has a new address.)
        hardware = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        administer("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "address", hardware)
        administer("ip", "link", "set", inner, "netns", str(process.pid))
        administer("ip", "link", "set", outer, "master", BRIDGE, "up")
        in_network_of(process, "ip", "link", "set", "lo", "up")
        in_network_of(process, "ip", "address", "add", f"{address}/24", "dev", inner)
        in_network_of(process, "ip", "link", "set", inner, "up")
        process.stdin.write(b"go\n")
        process.stdin.close()
        self.running[name] = process

    def wait(self, name: str, limit: float) -> int | None:
        """The exit code; none when it runs on after so many seconds."""
        try:
            code = self.running[name].wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return None
        del self.running[name]
        return code

    def terminate(self, name: str):
        self.running[name].send_signal(signal.SIGTERM)

    def run(self, command: list[str], env: dict[str, str], limit: float):
        """Runs a command on the machine itself; exit code, output and errors."""
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, cwd="/")
        return [done.returncode, done.stdout, done.stderr]

    def get(self, address: str, port: int, path: str, wanted: int, limit: float, headers: dict[str, str]):
        """Asks until the status is the one that is wanted; status and body of the last answer."""
        until = time.monotonic() + limit
        while True:
            status, body = ask(address, port, path, headers)
            if status == wanted or time.monotonic() > until:
                return [status, body]
            time.sleep(0.1)


def network_of(process: int | str) -> str:
    return os.readlink(f"/proc/{process}/ns/net")


def ask(address: str, port: int, path: str, headers: dict[str, str]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except OSError as error:
        return 0, str(error)
    finally:
        connection.close()


pods = Pods()
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = getattr(pods, request.pop("do"))(**request)
    except Exception as error:  # The other side tells it with its test.
        answer = {"error": repr(error)}
    print(json.dumps(answer), flush=True)
