"""Values that cannot be meant are refused, with a sentence that names them."""

from __future__ import annotations

import json

import pytest
import yaml

from chart import CHART, HELMS, template, values_file

# Values as on the command line, and the member that must be named.
TYPOS = [
    (["controlPlane.replicsa=3"], "replicsa"),
    (["dataplane.replicas=3"], "dataplane"),
    (["database.existingsecret=x"], "existingsecret"),
    (["redis.mode=sentinels"], "mode"),
    (["mode=Fleet"], "mode"),
    (["controlPlane.replicas=0"], "replicas"),
    (["controlPlane.replicas=65"], "replicas"),
    (["controlPlane.replicas=two"], "replicas"),
    (["dataPlane.autoscaling.enabled=maybe"], "enabled"),
    (["dataPlane.service.port=70000"], "port"),
    (["dataPlane.service.type=Loadbalancer"], "type"),
    (["dataPlane.graceSeconds=30s"], "graceSeconds"),
    (["dataPlane.extraArgs[0]=max-connections"], "extraArgs"),
    (["dataPlane.extraEnv[0].nmae=X"], "extraEnv"),
    (["dataPlane.resources.limit.cpu=1"], "limit"),
    (["dataPlane.resources.limits.memory=1 GB"], "memory"),
    (["image.pullPolicy=ifNotPresent"], "pullPolicy"),
    (["image.tag=a:b"], "tag"),
    (["tests.image=busybox"], "image"),
    (["dataPlane.readyWithoutConfiguration=maybe"], "readyWithoutConfiguration"),
    (["embedded.size=big"], "size"),
    (["secrets.existingSecret=Not_A_Name"], "existingSecret"),
    (["configuration.environmentSecrets=x"], "environmentSecrets"),
    (["listenAddress=localhost"], "listenAddress"),
    (["metrics.serviceMonitor.interval=15"], "interval"),
    (["tls.enabled=true"], "enabled"),
    (["telemetry.otlp.endpoint=collector:4317"], "endpoint"),
    (["telemetry.otlp.endpoint=http://user:password@collector:4317"], "endpoint"),
    (["telemetry.otlp.sampler=sometimes"], "sampler"),
    (["telemetry.otlp.samplerRatio=2"], "samplerRatio"),
]

# Each value is fine by itself, all together are not.
CONTRADICTIONS = [
    (["mode=embedded"], "configuration.document"),
    (["database.bundled.enabled=false"], "database.existingSecret"),
    (["redis.bundled.enabled=false"], "redis.existingSecret"),
    (["redis.mode=cluster"], "redis.existingSecret"),
    (["tls.clientSecret=x"], "tls.existingSecret"),
    (["configuration.existingSecret=x", "configuration.document.a=b"], "both"),
    (["controlPlane.replicas=11"], "database.maxConnections"),
    (["dataPlane.autoscaling.minReplicas=11"], "maxReplicas"),
    (["dataPlane.resources.requests.cpu=null"], "requests.cpu"),
    (
        ["dataPlane.resources.requests.memory=null", "dataPlane.autoscaling.targetMemoryUtilizationPercentage=80"],
        "requests.memory",
    ),
]


def refusal(binary: str, values: list[str]) -> str:
    done = template(binary, *(word for value in values for word in ("--set", value)))
    assert done.returncode != 0, f"{values} were taken"
    return done.stderr


@pytest.mark.parametrize("binary", HELMS)
@pytest.mark.parametrize("values,named", TYPOS, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_typo_is_refused_by_the_schema(values, named, binary):
    told = refusal(binary, values)
    assert "schema" in told and named in told, told


@pytest.mark.parametrize("binary", HELMS)
@pytest.mark.parametrize("values,named", CONTRADICTIONS, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_contradiction_is_refused_in_a_sentence(values, named, binary):
    told = refusal(binary, values)
    assert "schema" not in told and named in told, told


@pytest.mark.parametrize("binary", HELMS)
def test_as_many_control_planes_as_the_database_has_room_for(binary):
    # 3 connections are the superusers', one is the migration's, 9 are each replica's.
    for replicas, limit, fits in ((1, 13, True), (2, 21, False), (2, 22, True), (10, 100, True), (11, 102, False)):
        done = template(
            binary, "--set", f"controlPlane.replicas={replicas}", "--set", f"database.maxConnections={limit}"
        )
        assert (done.returncode == 0) == fits, (replicas, limit, done.stderr)


def test_schema_knows_every_value_and_no_other():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(path, value, part):
        part = schema["definitions"][part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
        if "properties" not in part:
            return
        assert part["additionalProperties"] is False, path
        known = set(part["properties"]) - ({"global"} if not path else set())
        if path.endswith("resources"):
            return
        assert known == set(value), path
        for key, inner in value.items():
            compare(f"{path}.{key}", inner, part["properties"][key])

    compare("", values, schema)


@pytest.mark.parametrize("binary", HELMS)
def test_chart_may_be_part_of_another(binary):
    done = template(binary, "--values", values_file("default"), "--set", "global.imageRegistry=x")
    assert done.returncode == 0, done.stderr
