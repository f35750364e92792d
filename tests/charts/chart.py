"""The chart as helm renders it, and what its pods would be given."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CHART = ROOT / "charts" / "tidegate"
BINARIES = Path(os.environ.get("TIDEGATE_BIN_DIR", ROOT / "target" / "debug"))
HELMS = ("helm3", "helm4")
RELEASE = "tidegate"
NAMESPACE = "somewhere"
# Golden files and most checks look at one Kubernetes; `test_render` looks at several.
KUBERNETES = "1.33.0"
UPDATE = os.environ.get("TIDEGATE_UPDATE") == "1"

SETS = sorted(path.stem for path in (HERE / "values").glob("*.yaml"))

# As good as one that `openssl rand` makes; placeholders are refused.
SEALING_KEY = "".join(f"{number:02x}" for number in range(32))



def self_signed() -> tuple[str, str]:
    """A certificate and its key, in PEM: both planes look at theirs when they check what they are given."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
        + ["-days", "1", "-subj", "/CN=tidegate", "-keyout", "-", "-out", "-"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    key, _, certificate = made.partition("-----BEGIN CERTIFICATE-----")
    return "-----BEGIN CERTIFICATE-----" + certificate, key


CERTIFICATE, KEY = self_signed()

# Secrets that the value sets name. What they hold is good enough for the programs' own checks.
SECRETS = {
    "otlp": {"headers": "x-api-key=of%20the%20collector"},
    "tidegate-secrets": {
        "sealing-key": SEALING_KEY,
        "admin-token": "an-admin-token",
        "data-plane-token": "a-data-plane-token",
    },
    "tidegate-database": {"uri": "postgres://somebody:secret@database.example.com/tidegate"},
    "tidegate-redis": {"redis-url": "rediss://:secret@redis.example.com:6379"},
    "tidegate-sentinel": {
        "redis-url": "redis://sentinel-1:26379,redis://sentinel-2:26379",
        "node-url": "redis://:secret@ignored",
    },
    "tidegate-cluster": {"nodes": "redis://node-1:6379,redis://node-2:6379"},
    "tidegate-tls": {"tls.crt": CERTIFICATE, "tls.key": KEY, "ca.crt": CERTIFICATE},
    "tidegate-client-tls": {"tls.crt": CERTIFICATE, "tls.key": KEY},
    "tidegate-document": {
        "tidegate.yaml": yaml.safe_dump(
            {
                "providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://p.example.com/v1"}],
                "connections": [{"id": "c", "provider": "p", "credential": {"file": "key-of-c"}}],
                "keys": [{"id": "k", "secret": {"file": "key-of-k"}}],
            }
        ),
        "key-of-c": "sk-upstream",
        "key-of-k": "sk-client",
    },
    "provider-keys": {"OPENAI_API_KEY": "sk-upstream", "TEAM_API_KEY": "sk-client"},
}


def helm(binary: str, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs one of the helms; its exit code is the caller's to judge."""
    path = Path(os.environ["TIDEGATE_HELM_DIR"]) / binary
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **(env or {})}
    return subprocess.run([path, *args], capture_output=True, text=True, timeout=60, env=environment)


def template(binary: str, *args: str, kubernetes: str = KUBERNETES) -> subprocess.CompletedProcess[str]:
    return helm(binary, "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", kubernetes, *args)


def values_file(name: str) -> str:
    return str(HERE / "values" / f"{name}.yaml")


@functools.cache
def rendered(name: str, binary: str = "helm4", kubernetes: str = KUBERNETES) -> tuple[dict, ...]:
    """The objects of a value set. Not to be changed."""
    return rendered_with("--values", values_file(name), binary=binary, kubernetes=kubernetes)


def rendered_with(*args: str, binary: str = "helm4", kubernetes: str = KUBERNETES) -> tuple[dict, ...]:
    """The objects of any values."""
    done = template(binary, *args, kubernetes=kubernetes)
    assert done.returncode == 0, done.stderr
    return tuple(doc for doc in yaml.safe_load_all(done.stdout) if doc)


def of_kind(objects, *kinds: str) -> list[dict]:
    return [one for one in objects if one["kind"] in kinds]


def title(one: dict) -> str:
    return f"{one['kind']}/{one['metadata']['name']}"


def pods(objects) -> list[tuple[str, dict, dict]]:
    """Title of the owner, metadata and spec of every pod there will be."""
    found = []
    for one in objects:
        if one["kind"] == "Pod":
            found.append((title(one), one["metadata"], one["spec"]))
        elif one["kind"] in ("Deployment", "StatefulSet", "Job"):
            inner = one["spec"]["template"]
            found.append((title(one), inner["metadata"], inner["spec"]))
    return found


def containers(spec: dict) -> list[dict]:
    return spec.get("initContainers", []) + spec["containers"]


def binary_of(container: dict) -> str | None:
    """Which of our binaries a container runs: images are called like them."""
    name = container["image"].rsplit("/", 1)[-1].rsplit(":", 1)[0]
    return name if name.startswith("tidegate") else None


def secret(objects, name: str) -> dict[str, str]:
    """What a Secret holds: one of the chart, or one that the value sets name."""
    import base64

    for one in of_kind(objects, "Secret"):
        if one["metadata"]["name"] == name:
            return {key: base64.b64decode(value).decode() for key, value in one["data"].items()}
    return SECRETS[name]


def environment(objects, container: dict) -> dict[str, str]:
    """The variables of a container, as the kubelet would set them."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found.update(secret(objects, source["secretRef"]["name"]))
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            value = secret(objects, source["secretKeyRef"]["name"])[source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            value = f"value-of-{source['fieldRef']['fieldPath']}"
        else:
            value = variable["value"]
        found[variable["name"]] = value
    return found


def files(objects, spec: dict, container: dict) -> dict[str, dict[str, str] | None]:
    """What is mounted where: names and texts of files, or nothing for an empty folder that can be written to."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    found: dict[str, dict[str, str] | None] = {}
    for mount in container.get("volumeMounts", []):
        volume = volumes.get(mount["name"], {})
        if "secret" in volume:
            texts = secret(objects, volume["secret"]["secretName"])
            if "items" in volume["secret"]:
                texts = {item["path"]: texts[item["key"]] for item in volume["secret"]["items"]}
            found[mount["mountPath"]] = texts
        elif "configMap" in volume:
            name = volume["configMap"]["name"]
            maps = [one for one in of_kind(objects, "ConfigMap") if one["metadata"]["name"] == name]
            found[mount["mountPath"]] = maps[0]["data"]
        else:
            found[mount["mountPath"]] = None
    return found


def flag(args: list[str], name: str) -> str | None:
    """The value of the last `--name=value`."""
    values = [arg.partition("=")[2] for arg in args if arg.partition("=")[0] == f"--{name}"]
    return values[-1] if values else None


def seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)s", text)
    assert match, text
    return int(match[1])
