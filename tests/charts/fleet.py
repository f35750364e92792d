"""A fleet of pods as a rendered chart says: images, flags, variables, names, probes and ends.

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
import time
from pathlib import Path

import pytest

from chart import BINARIES, HERE, binary_of, containers, environment, files, of_kind, pods, title
from image import command_in, stages, tool
from test_runs import sandbox

# How long something may take until it is as it should be, in seconds.
LIMIT = 60


# Control planes that have a name.
MOST_CONTROL_PLANES = 3


def component_of(metadata: dict) -> str:
    return metadata["labels"]["app.kubernetes.io/component"]


class Machine:
    """What `machine.py` does, from outside."""

    def __init__(self, folder: Path):
        self.folder = folder
        isolated = [tool("unshare"), "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self.process = subprocess.Popen(
            [*isolated, sys.executable, str(HERE / "machine.py")],
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
        return self.whole_log(name)[-3000:]

    def whole_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def start(self, name: str, address: str, command: list[str], env: dict[str, str]):
        self.ask("start", name=name, address=address, command=command, env=env, log=str(self.folder / f"{name}.log"))

    def close(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()


class Fleet:
    """The pods of a rendered chart, each with an address."""

    def __init__(self, machine: Machine, trees, objects, stores=None):
        """`stores` is the chart that bundles Postgres and Redis, where `objects` does not."""
        self.machine, self.trees, self.folder = machine, trees, machine.folder
        self.stores = {component_of(meta): spec for _, meta, spec in pods(stores or objects)}
        self.store_objects = stores or objects
        self.address: dict[str, str] = {}
        self.objects = objects
        self.upgrade(objects)
        self.data_planes = ["tidegate-data-plane-a", "tidegate-data-plane-b"]
        hosts = {name: self.address_of(name) for name in ("tidegate-postgres", "tidegate-redis", "upstream")}
        # What the cluster's DNS says: Services, and pods below their StatefulSet's Service.
        for number in range(MOST_CONTROL_PLANES):
            name = f"{self.control_plane['metadata']['name']}-{number}"
            hosts[f"{name}.{self.control_plane['spec']['serviceName']}"] = self.address_of(name)
        hosts["tidegate-control-plane"] = self.address[self.control_planes[0]]
        self.hosts = "".join(f"{address} {name}\n" for name, address in hosts.items())

    def upgrade(self, objects):
        """Pods that start from now on are those of another revision. What was generated once stays, as Helm sees to."""
        kept = {title(one): one for one in of_kind(self.objects, "Secret")}
        self.objects = tuple(kept.get(title(one), one) for one in objects)
        self.by_component = {component_of(meta): spec for _, meta, spec in pods(objects)}
        (self.control_plane,) = [
            one for one in of_kind(objects, "StatefulSet") if one["metadata"]["name"].endswith("-control-plane")
        ]
        name, replicas = self.control_plane["metadata"]["name"], self.control_plane["spec"]["replicas"]
        assert replicas <= MOST_CONTROL_PLANES
        self.control_planes = [f"{name}-{number}" for number in range(replicas)]

    def address_of(self, name: str) -> str:
        return self.address.setdefault(name, f"10.0.0.{10 + len(self.address)}")

    def start(self, name: str, component: str, **instead: str):
        """Starts a pod; with other contents of Secrets in some variables, if `instead` names them."""
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
        assert instead.keys() <= env.keys(), instead
        command = command_in(folder / "tree", stages()[binary_of(one)], one["args"])
        self.machine.start(name, self.address_of(name), command, env | instead)

    def start_postgres(self):
        (one,) = self.stores["postgres"]["containers"]
        env = environment(self.store_objects, one)
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
        self.database = env
        self.machine.start("tidegate-postgres", self.address["tidegate-postgres"], [*become, *run, *one["args"]], {})

    def query(self, sql: str) -> str:
        """What the database answers; one row, one column."""
        env = self.database
        command = [tool("psql"), "--tuples-only", "--no-align", f"--host={self.address['tidegate-postgres']}"]
        command += [f"--username={env['POSTGRES_USER']}", f"--dbname={env['POSTGRES_DB']}", f"--command={sql}"]
        return self.run(command, {"PGPASSWORD": env["POSTGRES_PASSWORD"]})

    def ctl(self, *words: str):
        """What `tidegatectl` says of the first control plane, as JSON."""
        (one,) = [one for one in self.by_component["control-plane"]["containers"]]
        token = environment(self.objects, one)["TIDEGATE_ADMIN_TOKEN"]
        where = f"--control-plane=http://{self.address[self.control_planes[0]]}:7400"
        command = [str(BINARIES / "tidegatectl"), where, "--output=json", *words]
        return json.loads(self.run(command, {"TIDEGATE_ADMIN_TOKEN": token}))

    def run(self, command: list[str], env: dict[str, str]) -> str:
        code, output, errors = self.machine.ask("run", command=command, env=env, limit=LIMIT)
        assert code == 0, (command, errors)
        return output.strip()

    def start_redis(self):
        spec = self.stores["redis"]
        (one,) = spec["containers"]
        args = list(one["args"])
        for path, texts in files(self.store_objects, spec, one).items():
            folder = self.folder / f"redis{path.replace('/', '-')}"
            folder.mkdir()
            for name, text in (texts or {}).items():
                (folder / name).write_text(text)
            args = [arg.replace(path, str(folder), 1) if arg.startswith(path) else arg for arg in args]
        args[0] = tool(args[0])
        self.machine.start("tidegate-redis", self.address["tidegate-redis"], args, {})

    def says(self, name: str, text: str):
        """Waits until a pod has logged a text."""
        until = time.monotonic() + LIMIT
        while text not in self.machine.whole_log(name):
            assert time.monotonic() < until, (name, text, self.machine.log(name))
            time.sleep(0.05)

    def runs(self, name: str) -> bool:
        """A pod's process is still the one that was started."""
        return self.machine.ask("wait", name=name, limit=0) is None

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

    def end(self, component: str, *names: str):
        """Ends pods of a kind as the kubelet does, all at once."""
        self.tell_to_end(component, *names)
        self.have_ended(component, *names)

    def pre_stop(self, component: str) -> int:
        lifecycle = self.by_component[component]["containers"][0].get("lifecycle", {})
        return lifecycle.get("preStop", {}).get("sleep", {}).get("seconds", 0)

    def tell_to_end(self, component: str, *names: str):
        """The hook, and SIGTERM."""
        time.sleep(self.pre_stop(component))
        for name in names:
            self.machine.ask("terminate", name=name)

    def have_ended(self, component: str, *names: str):
        """Waits for pods that were told to end as long as they may take."""
        limit = self.by_component[component]["terminationGracePeriodSeconds"] - self.pre_stop(component)
        for name in names:
            code = self.machine.ask("wait", name=name, limit=limit)
            assert code == 0, (name, code, self.machine.log(name))
