"""What the Dockerfile and the compose file describe works: here the binaries run in the trees of their images."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from chart import ROOT, SEALING_KEY, pods, rendered, containers, binary_of
from image import command_in, entrypoint, final_stages, is_variable_of, stages, user

NAMES = [stage.name for stage in final_stages()]
# The C library and its kin take about 3.2 MB, the authorities of the web a quarter of one. How large a binary is says
# nothing here, where it is a debug build.
MOST_BYTES_BESIDE_THE_BINARY = 6_000_000
COMPOSE = ROOT / "deploy/compose/compose.yaml"


def run(trees, name: str, args: list[str], env: dict[str, str] | None = None):
    command = command_in(trees[name], stages()[name], args)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env or {}, cwd="/")


def test_images_are_those_that_the_chart_asks_for():
    asked = {
        binary_of(one)
        for name in ("configured", "embedded")
        for _, _, spec in pods(rendered(name))
        for one in containers(spec)
    }
    assert asked - {None} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_binary_runs_in_its_image(trees, name):
    done = run(trees, name, ["--version"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(name.removeprefix("/")), done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_missing_library_would_be_found(trees, name, tmp_path):
    """The test above sees what it should: without the C library nothing runs."""
    tree = tmp_path / "tree"
    subprocess.run(["cp", "-al", trees[name], tree], check=True)
    (library,) = tree.rglob("libc.so.6")
    library.unlink()
    done = subprocess.run(command_in(tree, stages()[name], ["--version"]), capture_output=True, timeout=60, env={})
    assert done.returncode != 0


@pytest.mark.parametrize("name", NAMES)
def test_image_is_small_and_its_user_is_nobody(trees, name):
    stage = stages()[name]
    assert user(stage) == "65532:65532"
    tree = trees[name]
    assert entrypoint(stage) == [f"/usr/local/bin/{name}"]
    files = [path for path in tree.rglob("*") if path.is_file()]
    # The binary, some libraries, authorities, user and group: no shell, no package manager.
    assert len(files) < 12, files
    beside = sum(path.stat().st_size for path in files if path != tree / entrypoint(stage)[0].lstrip("/"))
    assert beside < MOST_BYTES_BESIDE_THE_BINARY, {str(path): path.stat().st_size for path in files}
    assert not list(tree.rglob("sh")) and not list(tree.rglob("busybox"))
    # Nothing that a process could change but where it may keep something.
    own = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.stat().st_uid == 65532}
    assert own == {"var/lib/tidegate"}
    shared = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.stat().st_mode & 0o002}
    assert shared == {"tmp"}


def test_build_sees_all_that_the_sources_include():
    """A file that `include_str!` takes from elsewhere must not be kept out of the build."""
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [step for step in stages()["build"].all("COPY")]
    assert copied == [". ."]
    for folder in ("control-plane", "data-plane", "deploy", "proto", "docs", "Cargo.lock"):
        assert not any(folder == line.strip("/") for line in ignored)


def test_build_makes_every_binary_that_is_collected():
    build = " ".join(stages()["build"].all("RUN"))
    for name in NAMES:
        assert f"--package {name} " in f"{build} ", name
        assert f"target/release/{name}" in build, name
    toolchain = re.search(r'rust-version = "(.*)"', (ROOT / "Cargo.toml").read_text())[1]
    assert f"rust:{toolchain}-" in stages()["build"].base


# === Compose ===


@pytest.fixture(scope="module")
def services():
    text = COMPOSE.read_text()
    for number, name in enumerate(dict.fromkeys(re.findall(r"\$\{(\w+):\?", text))):
        assert f"{name}=" in (COMPOSE.parent / "example.env").read_text()
        # Each its own: tokens of two kinds of callers must differ.
        text = re.sub(rf"\$\{{{name}:\?[^}}]*\}}", SEALING_KEY[2 * number :] + SEALING_KEY[: 2 * number], text)
    text = re.sub(r"\$\{\w+:-([^}]*)\}", lambda default: default[1] or '""', text)
    return yaml.safe_load(text)["services"]


def test_compose_is_two_and_two(services):
    built = [one["build"]["target"] for one in services.values() if "build" in one]
    assert sorted(built) == ["tidegate-control-plane"] * 2 + ["tidegate-data-plane"] * 2 + ["tidegatectl"]
    for one in services.values():
        assert set(one.get("depends_on", {})) <= set(services)
    assert (ROOT / "deploy/compose" / services["data-plane-1"]["build"]["context"]).resolve() == ROOT
    hosts = [re.search(r"//([^:]+):", arg)[1] for arg in services["data-plane-1"]["command"] if "//" in arg]
    assert hosts == ["control-plane-1", "control-plane-2"]
    # Nobody but this machine.
    assert all(port.startswith("127.0.0.1:") for one in services.values() for port in one.get("ports", []))


def test_compose_gives_what_the_binaries_take(services, trees):
    for name, one in services.items():
        if "build" not in one or name == "tidegatectl":
            continue
        target = one["build"]["target"]
        done = run(trees, target, ["--validate", *one["command"]], env=one["environment"])
        assert done.returncode == 0, (name, done.stderr, done.stdout)
        known = run(trees, target, ["--help"]).stdout
        for variable in one["environment"]:
            assert is_variable_of(target, known, variable), (name, variable)
        grace = re.search(r"--grace=(\d+)s", " ".join(one["command"]))[1]
        parts = 2 if target == "tidegate-control-plane" else 1
        assert int(one["stop_grace_period"].rstrip("s")) > parts * int(grace) + 8
