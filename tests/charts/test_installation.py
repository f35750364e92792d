"""Installations and upgrades against an API server that keeps objects and runs nothing (`cluster.py`)."""

from __future__ import annotations

import base64

import pytest

from chart import CHART, HELMS, NAMESPACE, SECRETS, SETS, helm, values_file
from cluster import Cluster


@pytest.fixture
def cluster():
    made = Cluster(NAMESPACE)
    yield made
    made.close()


def give(cluster: Cluster, *names: str):
    for name in names:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in SECRETS[name].items()}
        cluster.put("Secret", name, {"data": data})


def run(cluster: Cluster, binary: str, *args: str, tmp_path):
    env = {**cluster.environment(), "HOME": str(tmp_path)}
    return helm(binary, *args, "--namespace", NAMESPACE, "--timeout", "20s", env=env)


def install(cluster: Cluster, binary: str, *args: str, tmp_path, verb: str = "install"):
    # Schemas are the business of `test_render`.
    words = ["tidegate", str(CHART), "--disable-openapi-validation"]
    return run(cluster, binary, verb, *words, *args, tmp_path=tmp_path)


@pytest.mark.parametrize("binary", HELMS)
def test_bare_installation_and_upgrades_keep_what_was_generated(binary, cluster, tmp_path):
    done = install(cluster, binary, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    generated = cluster.objects["Secret", "tidegate-generated"]["data"]
    assert {"sealing-key", "admin-token", "data-plane-token", "database-url", "redis-url"} <= set(generated)
    assert len(base64.b64decode(base64.b64decode(generated["sealing-key"]))) == 32
    assert base64.b64decode(generated["postgres-password"]) in base64.b64decode(generated["database-url"])
    # The bundled database is not there before an installation: no hook could wait for it.
    assert not [name for kind, name in cluster.made if kind == "Job"]

    done = install(cluster, binary, "--set", "controlPlane.replicas=3", tmp_path=tmp_path, verb="upgrade")
    assert done.returncode == 0, done.stderr
    assert cluster.objects["Secret", "tidegate-generated"]["data"] == generated
    assert cluster.objects["StatefulSet", "tidegate-control-plane"]["spec"]["replicas"] == 3

    # Nothing is lost on the way to stores of one's own, nor with the release.
    give(cluster, "tidegate-database", "tidegate-redis")
    own = ["--set", "database.existingSecret=tidegate-database,database.existingSecretKey=uri"]
    own += ["--set", "redis.existingSecret=tidegate-redis"]
    done = install(cluster, binary, *own, tmp_path=tmp_path, verb="upgrade")
    assert done.returncode == 0, done.stderr
    assert cluster.objects["Secret", "tidegate-generated"]["data"] == generated
    done = run(cluster, binary, "uninstall", "tidegate", tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert cluster.objects["Secret", "tidegate-generated"]["data"] == generated
    assert ("StatefulSet", "tidegate-control-plane") not in cluster.objects
    done = install(cluster, binary, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert cluster.objects["Secret", "tidegate-generated"]["data"] == generated


@pytest.mark.parametrize("binary", HELMS)
def test_migration_comes_before_everything_and_has_a_name_for_each_revision(binary, cluster, tmp_path):
    give(cluster, "tidegate-database", "tidegate-redis", "tidegate-secrets")
    production = ["--values", values_file("production")]
    done = install(cluster, binary, *production, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    kinds = [one for one in cluster.made if not one[1].startswith("sh.helm.release")]
    assert kinds[0] == ("Job", "tidegate-migrate-1"), kinds
    assert ("Job", "tidegate-migrate-1") not in cluster.objects, "it is taken away when it succeeded"

    # A failed migration ends the upgrade before anything changed; the next try has a name of its own.
    before = dict(cluster.objects["StatefulSet", "tidegate-control-plane"]["spec"])
    cluster.failing_jobs = True
    done = install(cluster, binary, *production, "--set", "controlPlane.replicas=5", tmp_path=tmp_path, verb="upgrade")
    assert done.returncode != 0
    assert "pre-upgrade" in done.stderr, done.stderr
    assert cluster.objects["StatefulSet", "tidegate-control-plane"]["spec"] == before
    cluster.failing_jobs = False
    done = install(cluster, binary, *production, tmp_path=tmp_path, verb="upgrade")
    assert done.returncode == 0, done.stderr
    names = [name for kind, name in cluster.made if kind == "Job"]
    assert names == ["tidegate-migrate-1", "tidegate-migrate-2", "tidegate-migrate-3"]


@pytest.mark.parametrize("binary", HELMS)
def test_configuration_is_applied_by_a_job_of_each_revision(binary, cluster, tmp_path):
    give(cluster, "provider-keys")
    for verb in ("install", "upgrade"):
        done = install(cluster, binary, "--values", values_file("configured"), tmp_path=tmp_path, verb=verb)
        assert done.returncode == 0, done.stderr
    jobs = [name for kind, name in cluster.objects if kind == "Job"]
    assert [name.rsplit("-", 1)[0] for name in jobs] == ["tidegate-configure-2"]


@pytest.mark.parametrize("binary", HELMS)
def test_helm_test_runs_a_pod(binary, cluster, tmp_path):
    done = install(cluster, binary, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("Pod", "tidegate-test") not in cluster.made
    done = run(cluster, binary, "test", "tidegate", tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert ("Pod", "tidegate-test") in cluster.made


# A value set, a Secret that it needs, and the key of it that is taken away; without one, the whole Secret.
MISSING = [
    ("production", "tidegate-secrets", None),
    ("production", "tidegate-secrets", "sealing-key"),
    ("production", "tidegate-database", None),
    ("production", "tidegate-database", "uri"),
    ("production", "tidegate-redis", None),
    ("sentinel", "tidegate-sentinel", "node-url"),
    ("cluster", "tidegate-cluster", "nodes"),
    ("tls", "tidegate-tls", "ca.crt"),
    ("tls", "tidegate-document", "tidegate.yaml"),
    ("mutual-tls", "tidegate-client-tls", "tls.key"),
    ("configured", "provider-keys", None),
    ("embedded-secret", "tidegate-secrets", "admin-token"),
]


@pytest.mark.parametrize("binary", HELMS)
@pytest.mark.parametrize("values,name,key", MISSING)
def test_missing_secret_is_named_before_anything_is_made(values, name, key, binary, cluster, tmp_path):
    give(cluster, *SECRETS)
    if key is None:
        del cluster.objects["Secret", name]
    else:
        del cluster.objects["Secret", name]["data"][key]
    done = install(cluster, binary, "--values", values_file(values), tmp_path=tmp_path)
    assert done.returncode != 0
    assert f'"{name}"' in done.stderr, done.stderr
    assert key is None or f'"{key}"' in done.stderr, done.stderr
    assert not cluster.made, cluster.made


@pytest.mark.parametrize("binary", HELMS)
@pytest.mark.parametrize("name", SETS)
def test_notes_tell_what_comes_next(name, binary, cluster, tmp_path):
    give(cluster, *SECRETS)
    done = install(cluster, binary, "--values", values_file(name), tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:")[1]
    assert "port-forward" in notes and "{{index .data" in notes, notes
    bundled = name not in ("production", "sentinel", "embedded", "embedded-secret")
    assert ("WARNING" in notes) == bundled, notes
    configured = name in ("configured", "tls", "mutual-tls", "embedded", "embedded-secret")
    assert ("tidegatectl apply" in notes) == (not configured), notes


@pytest.mark.parametrize("binary", HELMS)
def test_old_kubernetes_gets_the_versions_that_it_knows(binary, tmp_path):
    old = Cluster(NAMESPACE, minor=20)
    try:
        done = install(old, binary, tmp_path=tmp_path)
        assert done.returncode == 0, done.stderr
        assert old.objects["HorizontalPodAutoscaler", "tidegate-data-plane"]["apiVersion"] == "autoscaling/v2beta2"
        assert old.objects["PodDisruptionBudget", "tidegate-data-plane"]["apiVersion"] == "policy/v1beta1"
        pod = old.objects["StatefulSet", "tidegate-control-plane"]["spec"]["template"]["spec"]
        assert "lifecycle" not in pod["containers"][0]
    finally:
        old.close()
