"""Runs a command in the network that this process is alone in, and asks it what standard input says.

Each line is `{"port": .., "path": ..}`; the status of the answer is printed, after as many tries as it takes until
somebody listens. The end of the input is SIGTERM for the command, whose exit code becomes this one's.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import socket
import struct
import subprocess
import sys
import time

SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1
LIMIT = 30


def raise_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def status(port: int, path: str) -> int:
    until = time.monotonic() + LIMIT
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
            connection.request("GET", path)
            return connection.getresponse().status
        except ConnectionRefusedError:
            if time.monotonic() > until:
                return 0
            time.sleep(0.05)


raise_loopback()
command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
for line in sys.stdin:
    wanted = json.loads(line)
    print(status(wanted["port"], wanted["path"]), flush=True)
command.terminate()
sys.exit(command.wait())
