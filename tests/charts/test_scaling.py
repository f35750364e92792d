"""A fleet grows, shrinks and is restarted under load, and no client notices.

The planes are those of a rendered chart (`fleet.py`), the clients and the Service before the data planes are `load.py`, the
provider is `upstream.py`. One account has a limit, one is exhausted, one fails: so permits, a cooldown, a breaker and its
probes are in play while planes come and go. `make scale-test` prints what happened; TIDEGATE_SCALE_REQUESTS is how many
requests each phase lasts at least (by default few, for `make test`), and above 1000 a control plane comes and goes, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chart import HERE, SECRETS, of_kind, rendered_with
from fleet import LIMIT, Fleet

REQUESTS = int(os.environ.get("TIDEGATE_SCALE_REQUESTS", "150"))
LONG = REQUESTS > 1000
CAP = 2
# How long kube-proxy goes on sending new connections to a pod that was told to end, in seconds.
ENDPOINT_LAG = 0.5
# From the failing provider's last failure to the next probe, in seconds (scaling.yaml).
RESET_TIMEOUT = 1.0

ACCOUNTS = ("steady", "capped", "failing", "exhausted", "rested")
KEYS = {"TEAM_API_KEY": "sk-client", **{f"KEY_OF_{name.upper()}": f"key-of-{name}" for name in ACCOUNTS}}

# Some clients let go of their connections, others keep them for long.
CLIENTS = [
    {"name": "json", "model": "steady/m", "stream": False, "count": 3, "uses": 1, "pause": 0.05},
    {"name": "kept", "model": "steady/m", "stream": False, "count": 3, "uses": 1000, "pause": 0.05},
    {"name": "stream", "model": "steady/m", "stream": True, "count": 4, "uses": 5, "pause": 0.05},
    {"name": "long", "model": "steady/long", "stream": True, "count": 2, "uses": 5, "pause": 0.05},
    {"name": "capped", "model": "capped/m", "stream": True, "count": 4, "uses": 5, "pause": 0.02},
    {"name": "spent", "model": "spent/m", "stream": False, "count": 2, "uses": 5, "pause": 0.1},
    {"name": "fallback", "model": "fallback", "stream": False, "count": 3, "uses": 5, "pause": 0.1},
]


@dataclass
class Phase:
    name: str
    planes: int
    begun: float
    ended: float = 0.0


@dataclass
class Scene:
    """A fleet under load, and what is known of it."""

    fleet: Fleet
    folder: Path
    running: list[str] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)
    started: dict[str, float] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    ends: bool = False
    # How far what others tell was read, and what it was.
    known: dict[str, tuple[int, list[dict]]] = field(default_factory=dict)

    def told(self, file: str) -> list[dict]:
        """What the load or the provider has told; the last line may be half written."""
        path, (read, known) = self.folder / file, self.known.setdefault(file, (0, []))
        if path.exists():
            with open(path, "rb") as lines:
                lines.seek(read)
                whole = lines.read()
            whole = whole[: whole.rfind(b"\n") + 1]
            known += [json.loads(line) for line in whole.splitlines()]
            self.known[file] = (read + len(whole), known)
        return known

    def requests(self) -> list[dict]:
        return [one for one in self.told("told.jsonl") if one["what"] == "request"]

    def until(self, what: str, condition):
        limit = time.monotonic() + LIMIT
        while not (found := condition()):
            assert time.monotonic() < limit, f"{what}: {self.problems()}"
            time.sleep(0.05)
        return found

    def problems(self) -> list[dict]:
        return [one for one in self.requests() if one["problem"]]

    def publish(self):
        """Tells the load which pods there are."""
        pods = [
            {"name": name, "address": self.fleet.address_of(name), "leaving": name in self.leaving}
            for name in self.started
        ]
        new = self.folder / "pods.new"
        new.write_text(json.dumps({"pods": pods, "ends": self.ends}))
        new.rename(self.folder / "pods.json")

    # Phases.

    def phase(self, name: str):
        now = time.monotonic()
        if self.phases:
            self.phases[-1].ended = now
        self.phases.append(Phase(name, len(self.running), now))

    def lasts(self, requests: int = REQUESTS):
        """Goes on until so many more requests have ended."""
        wanted = len(self.requests()) + requests
        self.until("the load goes on", lambda: len(self.requests()) >= wanted)

    # Data planes.

    def grow(self, count: int):
        """As a Deployment does: pods with new names."""
        new = [f"tidegate-data-plane-{len(self.started) + number}" for number in range(count)]
        for name in new:
            self.started[name] = time.monotonic()
            self.fleet.start(name, "data-plane")
        self.running += new
        self.publish()
        for name in new:
            self.fleet.is_ready(name, "data-plane")

    def shrink(self, count: int):
        """Endpoints are taken away when pods are told to end, a moment later."""
        gone, self.running = self.running[:count], self.running[count:]
        self.fleet.tell_to_end("data-plane", *gone)
        time.sleep(ENDPOINT_LAG)
        self.leaving += gone
        self.publish()
        self.fleet.have_ended("data-plane", *gone)

    def serves(self, name: str) -> float | None:
        """When a data plane's first answer came."""
        return next((one["to"] for one in self.requests() if one.get("pod") == name and not one["problem"]), None)

    def roll(self):
        """As a Deployment does: one more, and when it is ready one less."""
        for _ in range(len(self.running)):
            self.grow(1)
            self.shrink(1)

    # Control planes.

    def restart_control_planes(self):
        """As a StatefulSet does: from the last to the first, each when the one before is ready."""
        for name in reversed(self.fleet.control_planes):
            self.fleet.end("control-plane", name)
            self.fleet.start(name, "control-plane")
            self.fleet.is_ready(name, "control-plane")


def objects(control_planes: int = 2):
    return rendered_with("--values", str(HERE / "scaling.yaml"), "--set", f"controlPlane.replicas={control_planes}")


@pytest.fixture
def scene(machine, trees, monkeypatch):
    monkeypatch.setitem(SECRETS, "scaling-keys", KEYS)
    return Scene(Fleet(machine, trees, objects()), machine.folder)


def start(scene: Scene):
    fleet = scene.fleet
    fleet.start_postgres()
    fleet.start_redis()
    for name in fleet.control_planes:
        fleet.start(name, "control-plane")
    for name in fleet.control_planes:
        fleet.is_ready(name, "control-plane")
    job = next(one for one in of_kind(fleet.objects, "Job"))
    fleet.run_job("configure", "job", tries=job["spec"]["backoffLimit"] + 1)
    python = [sys.executable, "-u"]
    calls = str(scene.folder / "calls.jsonl")
    fleet.machine.start(
        "upstream", fleet.address_of("upstream"), [*python, str(HERE / "upstream.py"), "9000", calls], {}
    )
    (one,) = fleet.by_component["data-plane"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    probe = one["readinessProbe"]
    asked = {
        "port": ports[probe["httpGet"]["port"]],
        "path": probe["httpGet"]["path"],
        "period": probe["periodSeconds"],
        "timeout": probe["timeoutSeconds"],
        "failures": probe["failureThreshold"],
    }
    spec = {"clients": CLIENTS, "key": KEYS["TEAM_API_KEY"], "port": ports["http"], "probe": asked}
    (scene.folder / "load.json").write_text(json.dumps(spec))
    scene.phase("start")
    scene.grow(1)
    fleet.machine.start("load", fleet.address_of("load"), [*python, str(HERE / "load.py"), str(scene.folder)], {})


def breaker_is_open(scene: Scene) -> bool:
    return any(one["provider"] == "failing" and one["state"] == "OPEN" for one in scene.fleet.ctl("get", "breakers"))


def test_a_fleet_grows_and_shrinks_under_load_and_no_client_notices(scene, capsys):
    fleet = scene.fleet
    start(scene)
    # Until the fleet knows whom to leave alone. Calls of before may still be under way then.
    scene.until("the breaker opens", lambda: breaker_is_open(scene))
    scene.lasts(50)

    scene.phase("1 data plane")
    known = time.monotonic()
    scene.lasts()
    scene.phase("1 -> 4")
    scene.grow(3)
    for name in scene.running:
        scene.until(f"{name} serves", lambda name=name: scene.serves(name))
    scene.phase("4 data planes")
    scene.lasts()
    scene.phase("4 -> 2")
    scene.shrink(2)
    scene.phase("2 data planes")
    scene.lasts()
    restarted = time.monotonic()
    scene.phase("control planes restart")
    scene.restart_control_planes()
    if LONG:
        scene.phase("control planes 2 -> 3")
        fleet.upgrade(objects(control_planes=3))
        fleet.start(fleet.control_planes[2], "control-plane")
        fleet.is_ready(fleet.control_planes[2], "control-plane")
        scene.roll()
        scene.lasts()
        scene.phase("control planes 3 -> 2")
        last = fleet.control_planes[2]
        fleet.upgrade(objects())
        fleet.end("control-plane", last)
        scene.roll()
        scene.lasts()
    scene.phase("end")
    scene.ends = True
    scene.publish()
    assert fleet.machine.ask("wait", name="load", limit=LIMIT) == 0, fleet.machine.log("load")
    scene.phases[-1].ended = time.monotonic()
    with capsys.disabled():
        print(f"\n\n{table(scene)}")

    requests, calls = scene.requests(), scene.told("calls.jsonl")
    assert not scene.problems(), scene.problems()[:3]
    assert len({one["id"] for one in requests}) == len(requests)
    # Who leaves says so in time (`Connection: close`): nobody meets a closed connection.
    lost = [one for one in requests if one["lost"] and one["to"] < restarted]
    assert not lost, lost[:3]
    # What the fleet knew, those who came later knew from their first request on.
    later = [call for call in calls if call["from"] >= known]
    assert not [call for call in later if call["account"] == "exhausted"]
    probes = [call for call in later if call["account"] == "failing"]
    assert probes and max(call["at_once"] for call in probes) == 1, probes
    assert len(probes) <= 1 + (time.monotonic() - known) / RESET_TIMEOUT
    # The limit was reached, and never passed; in the end nobody holds anything.
    assert max(call["at_once"] for call in calls if call["account"] == "capped") == CAP
    scene.until("permits are back", lambda: not any(one["held"] for one in fleet.ctl("permit", "list")))
    # One call for each answer, and one record for each call.
    assert len([call for call in calls if call["status"] == 200]) == len(requests)
    recorded = "SELECT count(*) || ' ' || count(*) FILTER (WHERE source = 'unknown') FROM usage"
    wanted = f"{len(requests)} 0"
    scene.until(f"usage of {wanted} is recorded", lambda: fleet.query(recorded) == wanted)


def table(scene: Scene) -> str:
    """What happened in each phase."""
    columns = "phase|planes|seconds|requests|errors|asked again|whole answers: p50 ms|p99 ms"
    columns += f"|failing: calls|at once|exhausted: calls|capped: at once (of {CAP})"
    rows = [columns.split("|")]
    calls = scene.told("calls.jsonl")
    for phase in scene.phases:
        requests = [one for one in scene.requests() if phase.begun <= one["to"] < phase.ended]
        times = sorted(one["to"] - one["from"] for one in requests if one["client"] in ("json", "kept"))
        of = {
            account: [
                call for call in calls if call["account"] == account and phase.begun <= call["from"] < phase.ended
            ]
            for account in ("failing", "exhausted", "capped")
        }
        most = {account: max((call["at_once"] for call in of[account]), default=0) for account in of}
        rows.append(
            [
                phase.name,
                phase.planes,
                f"{phase.ended - phase.begun:.1f}",
                len(requests),
                len([one for one in requests if one["problem"]]),
                sum(one["lost"] for one in requests),
                *(f"{1000 * quantile(times, part):.0f}" for part in (0.5, 0.99)),
                len(of["failing"]),
                most["failing"],
                len(of["exhausted"]),
                most["capped"],
            ]
        )
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    ready = {one["pod"]: one["at"] for one in scene.told("told.jsonl") if one["what"] == "ready"}
    for name, begun in scene.started.items():
        first = scene.serves(name)
        if name in ready and first:
            lines.append(f"{name}: ready after {ready[name] - begun:.2f} s, first answer after {first - begun:.2f} s")
    return "\n".join(lines)


def quantile(sorted_values: list[float], part: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(part * len(sorted_values)))] if sorted_values else 0.0
