"""deploy/docker/Dockerfile without an engine: the trees of its images, out of binaries that are built already."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from chart import BINARIES, ROOT

DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
BINARY_FOLDER = "/binaries/"


def tool(name: str) -> str:
    """Where a program is that administrators have: those run here have no PATH to look in."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    assert found, f"{name} is not installed"
    return found


@dataclass
class Stage:
    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        return [rest for known, rest in self.steps if known == word]


def stages() -> dict[str, Stage]:
    """The stages by name. An instruction that is not known here is an error: it might matter."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.M)
    found: dict[str, Stage] = {}
    stage = None
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = found[name] = Stage(name, base)
        else:
            assert word in ("WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT"), line
            stage.steps.append((word, rest))
    return found


def final_stages() -> list[Stage]:
    return [stage for stage in stages().values() if stage.base == "scratch"]


def assemble(stage: Stage, folder: Path) -> Path:
    """The tree of an image: what the build stage collects, then what is copied out of it."""
    built = folder / "build"
    for step in stages()["build"].all("RUN"):
        if not step.startswith("deploy/"):
            continue
        script, binary, collected = shlex.split(step)
        assert binary.startswith(BINARY_FOLDER), step
        if not any(copy.split()[1].startswith(f"{collected}/") for copy in stage.all("COPY")):
            continue
        source = BINARIES / binary.removeprefix(BINARY_FOLDER)
        subprocess.run([ROOT / script, source, f"{built}{collected}"], check=True, timeout=120)
    tree = folder / "tree"
    for copy in stage.all("COPY"):
        option, source, target = copy.split()
        assert option == "--from=build" and source.endswith("/") and target == "/", copy
        shutil.copytree(f"{built}{source}", tree, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(built)
    subprocess.run(["chown", "65532:65532", tree / "var/lib/tidegate"], check=True)
    return tree


def entrypoint(stage: Stage) -> list[str]:
    (text,) = stage.all("ENTRYPOINT")
    return json.loads(text)


def user(stage: Stage) -> str:
    (text,) = stage.all("USER")
    return text


# What the OpenTelemetry specification calls its settings: `docs/operations/telemetry.md` lists those that are read.
OPENTELEMETRY = {
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
}
# Variables that pods are given and that stand for no flag.
WITHOUT_FLAG = {
    "tidegate": OPENTELEMETRY | {"REQUIRE_API_KEY"},
    "tidegate-control-plane": OPENTELEMETRY,
    "tidegate-data-plane": OPENTELEMETRY,
    "tidegatectl": {"TIDEGATE_ADMIN_TOKEN"},
}


def is_variable_of(program: str, help_text: str, name: str) -> bool:
    """A flag stands for the variable, by what the program tells of itself, or it is one of the few without. That the name
    is somewhere in the program would say little: the beginning of every name is."""
    # Lines end at some width. Values of secrets are not shown.
    return re.search(rf"\[env:\s+{name}[=\]]", help_text) is not None or name in WITHOUT_FLAG[program]


def command_in(tree: Path, stage: Stage, args: list[str]) -> list[str]:
    """What runs the image's entry point in its tree, as its user and without any capability."""
    return [tool("chroot"), f"--userspec={user(stage)}", "--groups=", str(tree), *entrypoint(stage), *args]
