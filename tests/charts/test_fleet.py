"""The fleet of a bare installation runs as the chart says: images, flags, variables, names, probes and ends.

Each pod has a network of its own; Postgres and Redis are those of this machine, with the chart's arguments. Nothing is
told to the programs but what the rendered objects say.
"""

from __future__ import annotations

import glob
import json
import os
import pwd
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from chart import binary_of, containers, environment, files, of_kind, pods, rendered, secret
from image import command_in, stages, tool
from test_runs import sandbox

# How long something may take until it is as it should be, in seconds.
LIMIT = 60


class Machine:
    """What `machine.py` does, from outside."""

    def __init__(self, folder: Path):
        self.folder = folder
        isolated = [tool("unshare"), "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self.process = subprocess.Popen(
            [*isolated, sys.executable, str(Path(__file__).parent / "machine.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == '"ready"\n', "no network could be made"

    def ask(self, do: str, **words):
        self.process.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert not (isinstance(answer, dict) and "error" in answer), (do, words, answer)
        return answer

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def start(self, name: str, address: str, command: list[str], env: dict[str, str]):
        self.ask("start", name=name, address=address, command=command, env=env, log=str(self.folder / f"{name}.log"))

    def close(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()


class Fleet:
    """The pods of a rendered chart, each with an address."""

    def __init__(self, machine: Machine, trees, objects, folder: Path):
        self.machine, self.trees, self.objects, self.folder = machine, trees, objects, folder
        self.by_component = {meta["labels"]["app.kubernetes.io/component"]: spec for _, meta, spec in pods(objects)}
        (plane,) = [
            one for one in of_kind(objects, "StatefulSet") if one["metadata"]["name"].endswith("-control-plane")
        ]
        self.control_planes = [f"{plane['metadata']['name']}-{number}" for number in range(plane["spec"]["replicas"])]
        self.data_planes = ["tidegate-data-plane-a", "tidegate-data-plane-b"]
        names = ["tidegate-postgres", "tidegate-redis", *self.control_planes, *self.data_planes, "job", "test"]
        self.address = {name: f"10.0.0.{10 + number}" for number, name in enumerate(names)}
        # What the cluster's DNS says: Services, and pods below their StatefulSet's Service.
        hosts = {name: self.address[name] for name in ("tidegate-postgres", "tidegate-redis")}
        for name in self.control_planes:
            hosts[f"{name}.{plane['spec']['serviceName']}"] = self.address[name]
        hosts["tidegate-control-plane"] = self.address[self.control_planes[0]]
        self.hosts = "".join(f"{address} {name}\n" for name, address in hosts.items())

    def start(self, name: str, component: str):
        spec = self.by_component[component]
        (one,) = [one for one in containers(spec) if binary_of(one)]
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        if not (folder / "tree").exists():
            tree = sandbox(self.trees, folder, self.objects, spec, one)
            (tree / "etc/hosts").write_text(self.hosts)
        env = {
            key: value.replace("value-of-metadata.name", name) for key, value in environment(self.objects, one).items()
        }
        command = command_in(folder / "tree", stages()[binary_of(one)], one["args"])
        self.machine.start(name, self.address[name], command, env)

    def start_postgres(self):
        (one,) = self.by_component["postgres"]["containers"]
        env = environment(self.objects, one)
        # Debian keeps them beside the PATH.
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        bin_folder = found[-1] if found else str(Path(tool("initdb")).parent)
        # Anybody but root, whom Postgres refuses.
        account = pwd.getpwnam("nobody")
        data = self.folder / "postgres"
        data.mkdir()
        password = self.folder / "password"
        password.write_text(env["POSTGRES_PASSWORD"])
        for path in (data, password):
            os.chown(path, account.pw_uid, account.pw_gid)
        become = [tool("setpriv"), f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]
        made = [
            f"{bin_folder}/initdb",
            f"--pgdata={data}",
            f"--username={env['POSTGRES_USER']}",
            f"--pwfile={password}",
        ]
        subprocess.run([*become, *made, "--auth=scram-sha-256", "--no-sync"], check=True, capture_output=True, cwd="/")
        with open(data / "pg_hba.conf", "a") as rules:
            # In the clear: what a client of a debug build computes for SCRAM takes as long as a call may.
            rules.write("host all all all password\n")
        # Of the image, not of the chart: all addresses, and a database of that name.
        run = [
            f"{bin_folder}/postgres",
            "-D",
            str(data),
            "-c",
            "listen_addresses=*",
            "-c",
            f"unix_socket_directories={data}",
        ]
        single = [f"{bin_folder}/postgres", "--single", "-D", str(data), "template1"]
        create = f'CREATE DATABASE "{env["POSTGRES_DB"]}"\n'
        subprocess.run([*become, *single], input=create, text=True, check=True, capture_output=True, cwd="/")
        self.machine.start("tidegate-postgres", self.address["tidegate-postgres"], [*become, *run, *one["args"]], {})

    def start_redis(self):
        spec = self.by_component["redis"]
        (one,) = spec["containers"]
        args = list(one["args"])
        for path, texts in files(self.objects, spec, one).items():
            folder = self.folder / f"redis{path.replace('/', '-')}"
            folder.mkdir()
            for name, text in (texts or {}).items():
                (folder / name).write_text(text)
            args = [arg.replace(path, str(folder), 1) if arg.startswith(path) else arg for arg in args]
        args[0] = tool(args[0])
        self.machine.start("tidegate-redis", self.address["tidegate-redis"], args, {})

    def is_ready(self, name: str, component: str):
        """Waits until the probes of a pod are answered as they should."""
        (one,) = self.by_component[component]["containers"]
        ports = {port["name"]: port["containerPort"] for port in one["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = one[probe]["httpGet"]
            status, body = self.get(name, ports[asked["port"]], asked["path"], 200)
            assert status == 200, (name, probe, body, self.machine.log(name))

    def get(self, name: str, port: int, path: str, wanted: int, limit: float = LIMIT, **headers):
        return self.machine.ask(
            "get", address=self.address[name], port=port, path=path, wanted=wanted, limit=limit, headers=headers
        )

    def run_job(self, component: str, name: str, tries: int):
        """A pod that ends, started again when it fails."""
        for number in range(tries):
            self.start(name, component)
            code = self.machine.ask("wait", name=name, limit=LIMIT)
            if code == 0:
                return
            time.sleep(min(number, 5))
        pytest.fail(f"{name} failed {tries} times: {self.machine.log(name)}")

    def end(self, name: str, component: str):
        limit = self.by_component[component]["terminationGracePeriodSeconds"]
        code = self.machine.ask("terminate", name=name, limit=limit)
        assert code == 0, (name, code, self.machine.log(name))


@pytest.fixture
def fleet(trees):
    # Not below pytest's own folder, which nobody but root may enter.
    with tempfile.TemporaryDirectory(prefix="tidegate-fleet-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        machine = Machine(folder)
        yield Fleet(machine, trees, rendered("configured"), folder)
        machine.close()


def test_fleet_comes_up_by_itself_serves_and_ends(fleet):
    # Nobody waits for anybody to be there first: the stores come last.
    for name in fleet.data_planes:
        fleet.start(name, "data-plane")
    for name in fleet.control_planes:
        fleet.start(name, "control-plane")
    status, _ = fleet.get(fleet.data_planes[0], 8081, "/livez", 200)
    assert status == 200
    status, _ = fleet.get(fleet.data_planes[0], 8081, "/readyz", 503)
    assert status == 503, "there is no configuration yet"
    fleet.start_postgres()
    fleet.start_redis()
    for name in fleet.control_planes:
        fleet.is_ready(name, "control-plane")

    job = next(one for one in of_kind(fleet.objects, "Job"))
    fleet.run_job("configure", "job", tries=job["spec"]["backoffLimit"] + 1)
    for name in fleet.data_planes:
        fleet.is_ready(name, "data-plane")
        port = fleet.by_component["data-plane"]["containers"][0]["ports"][0]["containerPort"]
        status, _ = fleet.get(name, port, "/v1/models", 401)
        assert status == 401
        key = secret(fleet.objects, "provider-keys")["TEAM_API_KEY"]
        status, body = fleet.get(name, port, "/v1/models", 200, Authorization=f"Bearer {key}")
        assert status == 200, body
        # Metrics are not where clients are.
        status, body = fleet.get(name, port, "/metrics", 404)
        assert status == 404, body
    # What `helm test` asks first.
    fleet.run_job("test", "test", tries=1)
    assert "control_planes" in fleet.machine.log("test") or "tidegate-control-plane" in fleet.machine.log("test")

    # One of each goes, the other goes on.
    fleet.end(fleet.control_planes[0], "control-plane")
    fleet.end(fleet.data_planes[0], "data-plane")
    fleet.is_ready(fleet.control_planes[1], "control-plane")
    fleet.is_ready(fleet.data_planes[1], "data-plane")
