"""Every container of ours is started as the kubelet would: in its image, with its flags, variables, files and user.

Programs that serve check what they are given (`--validate`); `tidegate` serves, in a network of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chart import ROOT, SETS, binary_of, containers, environment, files, pods, rendered
from image import WITHOUT_FLAG, command_in, is_variable_of, stages, tool

each_set = pytest.mark.parametrize("name", SETS)


def sandbox(trees, tmp_path: Path, objects, spec: dict, container: dict) -> Path:
    """The tree of a container with all that is mounted. Secrets belong to root and can be read by the pod's group."""
    tree = tmp_path / "tree"
    subprocess.run(["cp", "-al", trees[binary_of(container)], tree], check=True)
    group = spec["securityContext"]["fsGroup"]
    for path, texts in files(objects, spec, container).items():
        folder = tree / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, 0, group)
        folder.chmod(0o2775 if texts is None else 0o2755)
        for name, text in (texts or {}).items():
            file = folder / name
            file.write_text(text)
            os.chown(file, 0, group)
            file.chmod(0o440)
    return tree


def ours(objects):
    return [
        (owner, spec, one) for owner, _, spec in pods(objects) for one in containers(spec) if binary_of(one) is not None
    ]


def help_of(trees, binary: str, *command: str) -> str:
    done = subprocess.run(
        command_in(trees[binary], stages()[binary], [*command, "--help"]), capture_output=True, text=True, env={}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@each_set
def test_every_flag_is_taken(trees, name, tmp_path):
    objects = rendered(name)
    tried = []
    for number, (owner, spec, one) in enumerate(ours(objects)):
        binary = binary_of(one)
        if binary == "tidegate":
            continue
        where = tmp_path / str(number)
        where.mkdir()
        tree = sandbox(trees, where, objects, spec, one)
        args = one["args"]
        if binary == "tidegatectl":
            # There is nobody to talk to, which is told with another code than a flag that is not known (64), or a file
            # that cannot be used (65).
            args, expected = ["--timeout=1s", *args], 69
        else:
            args, expected = ["--validate", *args], 0
        done = subprocess.run(
            command_in(tree, stages()[binary], args),
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(objects, one),
        )
        assert done.returncode == expected, (owner, done.stdout, done.stderr)
        tried.append(binary)
    assert tried or name.startswith("embedded")


@each_set
def test_every_variable_means_something_to_who_gets_it(trees, name):
    objects = rendered(name)
    for owner, _, one in ours(objects):
        binary = binary_of(one)
        commands = [arg for arg in one["args"] if not arg.startswith("-")]
        known = help_of(trees, binary, *commands[:1])
        for variable in one.get("env", []):
            assert is_variable_of(binary, known, variable["name"]), (owner, variable["name"])


def test_a_variable_that_means_nothing_would_be_found(trees):
    program = "tidegate-data-plane"
    known = help_of(trees, program)
    # The last two are told of where a line ends.
    for name in ("TIDEGATE_LISTEN", "TIDEGATE_DATA_PLANE_TOKEN", "TIDEGATE_DECIDE_LIMIT", "SSE_HEARTBEAT_INTERVAL_MS"):
        assert is_variable_of(program, known, name)
        for wrong in (name[:-1], name[1:], f"{name}S"):
            assert not is_variable_of(program, known, wrong), wrong


def test_variables_without_a_flag_are_told_of_and_read(trees):
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy/standalone").rglob("*.yaml")]
    words = {word for page in pages for word in re.findall(r"[A-Z][A-Z0-9_]+", page.read_text())}
    for program, names in WITHOUT_FLAG.items():
        assert names <= words, (program, names - words)
        raw = (trees[program] / f"usr/local/bin/{program}").read_bytes()
        # Texts stand one behind the other there, so the end of a name cannot be seen.
        assert all(name.encode() in raw for name in names), program
        # Whoever stands for a flag by now needs no place in the list.
        commands = [[], ["run"]] if program == "tidegate" else [[]]
        known = "".join(help_of(trees, program, *command) for command in commands)
        assert not [name for name in names if re.search(rf"\[env:\s+{name}[=\]]", known)], program


def test_a_flag_that_means_nothing_would_be_found(trees):
    args = ["--validate", "--control-plane=http://x:1", "--listens=127.0.0.1:1"]
    done = subprocess.run(
        command_in(trees["tidegate-data-plane"], stages()["tidegate-data-plane"], args), capture_output=True, env={}
    )
    assert done.returncode == 64


@pytest.mark.parametrize("name", ["embedded", "embedded-secret"])
def test_embedded_pod_serves_and_ends(trees, name, tmp_path):
    objects = rendered(name)
    ((owner, spec, one),) = ours(objects)
    tree = sandbox(trees, tmp_path, objects, spec, one)
    network = [tool("unshare"), "--net", "--", sys.executable, str(Path(__file__).parent / "pod.py")]
    process = subprocess.Popen(
        [*network, *command_in(tree, stages()["tidegate"], one["args"])],
        env=environment(objects, one),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    probes = [one[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    # No key is shown where keys are required.
    for path, status in [*((path, 200) for path in probes), ("/v1/models", 401)]:
        process.stdin.write(json.dumps({"port": one["ports"][0]["containerPort"], "path": path}) + "\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == str(status), (owner, path, process.poll() and process.stderr.read())
    process.stdin.close()
    code = process.wait(timeout=spec["terminationGracePeriodSeconds"])
    assert code == 0, process.stderr.read()
    # What it keeps is on its disk, and for itself only.
    key = tree / "var/lib/tidegate/data/sealing.key"
    assert key.stat().st_mode & 0o777 == 0o600 and key.stat().st_uid == spec["securityContext"]["runAsUser"]
