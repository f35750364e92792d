"""The chart is rendered by both helms, alike, and Kubernetes would take what comes out."""

from __future__ import annotations

import functools
import re

import kubernetes_validate
import kubernetes_validate.utils
import pytest
import yaml

from chart import CHART, HELMS, HERE, SETS, UPDATE, helm, of_kind, rendered, title, values_file

# Kubernetes knows these only with an operator that brings them.
CUSTOM = {("monitoring.coreos.com/v1", "ServiceMonitor")}
# The first that has schemas, the last without and the first with `preStop.sleep`, the last.
VERSIONS = ("1.25.0", "1.29.0", "1.30.0", "1.37.0")
GOLDEN = ("default", "production", "embedded", "mutual-tls")

# Else the definitions of a whole Kubernetes are read for each object.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def masked(objects):
    """Without what is drawn by chance."""
    copies = yaml.safe_load_all(yaml.safe_dump_all(objects))
    found = []
    for one in copies:
        if one["kind"] == "Secret":
            one["data"] = {key: "(drawn by chance)" for key in one["data"]}
        found.append(one)
    return sorted(found, key=title)


@pytest.mark.parametrize("binary", HELMS)
@pytest.mark.parametrize("name", SETS)
def test_lint_finds_nothing(name, binary):
    done = helm(binary, "lint", "--strict", str(CHART), "--values", values_file(name))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout + done.stderr, done.stdout


@pytest.mark.parametrize("name", SETS)
def test_both_helms_render_the_same(name):
    assert masked(rendered(name, "helm3")) == masked(rendered(name, "helm4"))


@pytest.mark.parametrize("kubernetes", VERSIONS)
@pytest.mark.parametrize("name", SETS)
def test_kubernetes_knows_every_object(name, kubernetes):
    for one in rendered(name, kubernetes=kubernetes):
        if (one["apiVersion"], one["kind"]) in CUSTOM:
            continue
        # An unknown kind or version is an exception here, not a warning.
        kubernetes_validate.validate(one, kubernetes, strict=True)


@pytest.mark.parametrize("name", SETS)
def test_names_and_labels_are_allowed(name):
    seen = set()
    for one in rendered(name):
        metadata = one["metadata"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", metadata["name"]), title(one)
        assert title(one) not in seen, f"{title(one)} is there twice"
        seen.add(title(one))
        for key, value in metadata["labels"].items():
            assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value), f"{title(one)}: {key}"


def test_longest_release_name_is_cut_so_that_all_names_fit():
    for values in ("configured", "sentinel", "embedded"):
        done = helm("helm4", "template", "a" * 53, str(CHART), "--values", values_file(values))
        assert done.returncode == 0, done.stderr
        for one in yaml.safe_load_all(done.stdout):
            # The name of a StatefulSet is in a label of its pods, with a dash and a hash of ten digits.
            limit = 52 if one["kind"] == "StatefulSet" else 63
            assert len(one["metadata"]["name"]) <= limit, title(one)


@pytest.mark.parametrize("name", GOLDEN)
def test_rendered_as_recorded(name):
    path = HERE / "golden" / f"{name}.yaml"
    text = yaml.safe_dump_all(masked(rendered(name)), width=120)
    if UPDATE:
        path.write_text(text)
    assert text == path.read_text(), "TIDEGATE_UPDATE=1 make chart-test records it anew"


@pytest.mark.parametrize("binary", HELMS)
def test_package_can_be_made_and_rendered(binary, tmp_path):
    done = helm(binary, "package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.iterdir()
    done = helm(binary, "template", "x", str(archive))
    assert done.returncode == 0, done.stderr
    assert of_kind(yaml.safe_load_all(done.stdout), "Deployment")
