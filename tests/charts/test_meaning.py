"""Do the objects mean what they should, taken together?"""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from chart import (
    HERE,
    ROOT,
    SECRETS,
    SETS,
    binary_of,
    containers,
    environment,
    files,
    flag,
    of_kind,
    pods,
    rendered,
    rendered_with,
    seconds,
    secret,
    title,
)

each_set = pytest.mark.parametrize("name", SETS)


def matches(selector: dict, labels: dict) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def named_ports(spec: dict) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for one in containers(spec) for port in one.get("ports", [])}


@each_set
def test_selectors_meet_the_labels_of_exactly_one_kind_of_pod(name):
    objects = rendered(name)
    metadata = {owner: labels["labels"] for owner, labels, _ in pods(objects)}
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] in ("Deployment", "StatefulSet"):
            assert matches(spec["selector"]["matchLabels"], metadata[title(one)]), title(one)
            selector = spec["selector"]["matchLabels"]
        elif one["kind"] == "Service":
            selector = spec["selector"]
        elif one["kind"] == "PodDisruptionBudget":
            selector = spec["selector"]["matchLabels"]
        elif one["kind"] == "NetworkPolicy":
            selector = spec["podSelector"]["matchLabels"]
        else:
            continue
        owners = [owner for owner, labels in metadata.items() if matches(selector, labels)]
        assert len(owners) == 1, f"{title(one)} selects {owners}"


@each_set
def test_ports_lead_somewhere(name):
    objects = rendered(name)
    for service in of_kind(objects, "Service"):
        (spec,) = [spec for _, labels, spec in pods(objects) if matches(service["spec"]["selector"], labels["labels"])]
        for port in service["spec"]["ports"]:
            number = named_ports(spec)[port["targetPort"]]
            if service["spec"].get("clusterIP") == "None":
                # Nothing translates here: clients use the Service's number at the pod.
                assert port["port"] == number, title(service)
    for policy in of_kind(objects, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]["matchLabels"]
        (spec,) = [spec for _, labels, spec in pods(objects) if matches(selector, labels["labels"])]
        allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        # What only administrators may reach is closed until there are any.
        ports = set(named_ports(spec))
        assert allowed in (ports, ports - {"api"}), title(policy)
        for rule in policy["spec"]["ingress"]:
            assert {"port": "api", "protocol": "TCP"} not in rule["ports"] or rule["from"], title(policy)
    for _, _, spec in pods(objects):
        for one in spec["containers"]:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                for kind in ("httpGet", "tcpSocket"):
                    if kind in one.get(probe, {}):
                        assert one[probe][kind]["port"] in named_ports({"containers": [one]})
    names = {service["metadata"]["name"]: service for service in of_kind(objects, "Service")}
    for ingress in of_kind(objects, "Ingress"):
        for path in ingress["spec"]["rules"][0]["http"]["paths"]:
            backend = path["backend"]["service"]
            ports = [port["name"] for port in names[backend["name"]]["spec"]["ports"]]
            assert backend["port"]["name"] in ports
            # Probes and metrics are nobody's business out there.
            assert path["path"] != "/"


@each_set
def test_listeners_are_where_the_ports_are(name):
    for owner, _, spec in pods(rendered(name)):
        for one in spec["containers"]:
            args = one.get("args", [])
            told = {
                int(value.rsplit(":", 1)[1])
                for value in (
                    flag(args, listener)
                    for listener in ("listen", "admin-listen", "grpc-listen", "http-listen", "api-listen")
                )
                if value and not value.startswith("127.")
            }
            if told:
                assert told == {port["containerPort"] for port in one["ports"]}, owner


@each_set
def test_planes_find_each_other(name):
    objects = rendered(name)
    planes = [one for one in of_kind(objects, "StatefulSet") if one["metadata"]["name"].endswith("-control-plane")]
    for owner, _, spec in pods(objects):
        for one in containers(spec):
            urls = [arg.partition("=")[2] for arg in one.get("args", []) if arg.startswith("--control-plane=")]
            if not urls:
                continue
            (plane,) = planes
            tls = any(
                arg.startswith("--tls-cert-file=") for arg in plane["spec"]["template"]["spec"]["containers"][0]["args"]
            )
            assert all(url.startswith("https://" if tls else "http://") for url in urls), owner
            hosts = [re.fullmatch(r"https?://(.*):7400", url)[1] for url in urls]
            if binary_of(one) == "tidegate-data-plane":
                pod, service = plane["metadata"]["name"], plane["spec"]["serviceName"]
                assert hosts == [f"{pod}-{number}.{service}" for number in range(plane["spec"]["replicas"])]
                (headless,) = [one for one in of_kind(objects, "Service") if one["metadata"]["name"] == service]
                assert headless["spec"]["clusterIP"] == "None"
            else:
                services = {one["metadata"]["name"] for one in of_kind(objects, "Service")}
                assert set(hosts) <= services, owner
    if planes:
        bundled = {one["metadata"]["name"] for one in of_kind(objects, "Service")}
        env = environment(objects, planes[0]["spec"]["template"]["spec"]["containers"][0])
        for url in (env["TIDEGATE_DATABASE_URL"], env["TIDEGATE_REDIS_URL"].split(",")[0]):
            host = re.match(r"\w+://(?:[^@]*@)?([^:/]+)", url)[1]
            assert host in bundled or not host.startswith("tidegate"), url


@each_set
def test_mounts_and_volumes_belong_together(name):
    objects = rendered(name)
    claims = {
        title(one): [claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])]
        for one in of_kind(objects, "StatefulSet")
    }
    for owner, _, spec in pods(objects):
        volumes = [volume["name"] for volume in spec.get("volumes", [])] + claims.get(owner, [])
        assert len(volumes) == len(set(volumes)), owner
        mounted = [mount["name"] for one in containers(spec) for mount in one.get("volumeMounts", [])]
        assert set(volumes) == set(mounted), owner
        for one in containers(spec):
            mounts = files(objects, spec, one)
            for arg in one.get("args", []):
                path = arg.partition("=")[2]
                if not path.startswith("/") or binary_of(one) is None:
                    continue
                folder, _, file = path.rpartition("/")
                # A file that is there, or a place that can be written to.
                assert folder in mounts, f"{owner}: {arg}"
                assert mounts[folder] is None or file in mounts[folder], f"{owner}: {arg}"


@each_set
def test_secrets_are_there_with_what_is_asked_of_them(name):
    objects = rendered(name)
    for owner, _, spec in pods(objects):
        for one in containers(spec):
            # These look every key up.
            environment(objects, one)
            files(objects, spec, one)
            for variable in one.get("env", []):
                value = variable.get("value", "")
                assert (
                    not re.search("token|password|key", variable["name"], re.I)
                    or "valueFrom" in variable
                    or value
                    in (
                        "true",
                        "false",
                    )
                ), f"{owner}: {variable['name']} is in the clear"
    # What the chart makes is all used, or it would be a password for nothing.
    for made in of_kind(objects, "Secret"):
        asked = {
            variable["valueFrom"]["secretKeyRef"]["key"]
            for _, _, spec in pods(objects)
            for one in containers(spec)
            for variable in one.get("env", [])
            if variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == made["metadata"]["name"]
        } | {
            item["key"]
            for _, _, spec in pods(objects)
            for volume in spec.get("volumes", [])
            if volume.get("secret", {}).get("secretName") == made["metadata"]["name"]
            for item in volume["secret"]["items"]
        }
        # The one is within `redis.conf` and `redis-url`.
        assert set(made["data"]) - {"redis-password"} == asked


@each_set
def test_pods_have_no_rights_that_they_do_not_need(name):
    objects = rendered(name)
    accounts = {one["metadata"]["name"]: one for one in of_kind(objects, "ServiceAccount")}
    assert all(one["automountServiceAccountToken"] is False for one in accounts.values())
    for owner, metadata, spec in pods(objects):
        assert spec["automountServiceAccountToken"] is False, owner
        assert spec["enableServiceLinks"] is False, owner
        assert "serviceAccountName" not in spec or spec["serviceAccountName"] in accounts, owner
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True and context["runAsUser"] > 0, owner
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        assert not any(spec.get(shared) for shared in ("hostNetwork", "hostPID", "hostIPC")), owner
        for one in containers(spec):
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, owner
            if metadata["labels"]["app.kubernetes.io/component"] != "test":
                assert {"cpu", "memory"} <= set(one["resources"]["requests"]), owner
                assert "memory" in one["resources"]["limits"], owner


def ends(spec: dict) -> tuple[int, int]:
    """Seconds from the end being announced to the last of our own limits, and to SIGKILL."""
    (one,) = spec["containers"]
    args, binary = one["args"], binary_of(one)
    grace = seconds(flag(args, "grace"))
    sleep = one.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    if binary == "tidegate-control-plane":
        # What runs, then the listeners.
        needed = sleep + 2 * grace
    else:
        # docs/operations/draining.md: last words, then reports.
        needed = seconds(flag(args, "drain-delay")) + grace + 2 + 6
        # And in one process, two limits of 5 s for the control plane.
        needed += 10 if binary == "tidegate" else 0
    return needed, spec["terminationGracePeriodSeconds"]


@each_set
def test_kubernetes_waits_for_longer_than_a_drain_may_take(name):
    found = 0
    for owner, _, spec in pods(rendered(name)):
        if spec["containers"][0].get("lifecycle") or any(
            arg.startswith("--grace=") for arg in spec["containers"][0].get("args", [])
        ):
            needed, allowed = ends(spec)
            assert needed < allowed, owner
            found += 1
    assert found >= 1


def test_limits_of_a_drain_are_still_those_of_the_code():
    """The sums above and in the chart are made of these."""
    proxy = (ROOT / "data-plane/server/src/run.rs").read_text()
    assert "const FLUSH: Duration = Duration::from_secs(6);" in proxy
    standalone = (ROOT / "deploy/standalone/src/standalone.rs").read_text()
    assert "const CLIENT_DRAIN: Duration = Duration::from_secs(6);" in standalone
    assert "const CONTROL_DRAIN: Duration = Duration::from_secs(5);" in standalone


@each_set
def test_start_is_given_the_time_that_it_may_take(name):
    for owner, _, spec in pods(rendered(name)):
        for one in spec["containers"]:
            wait = flag(one.get("args", []), "start-limit")
            if binary_of(one) == "tidegate-control-plane" and "startupProbe" in one:
                probe = one["startupProbe"]
                # The wait for the database, and a migration of at most a minute.
                assert probe["periodSeconds"] * probe["failureThreshold"] > seconds(wait) + 60, owner


@each_set
def test_probes_ask_who_knows(name):
    for owner, _, spec in pods(rendered(name)):
        for one in spec["containers"]:
            if "ports" not in one or binary_of(one) is None:
                continue
            assert one["livenessProbe"]["httpGet"]["path"] == "/livez", owner
            assert one["startupProbe"]["httpGet"]["path"] == "/livez", owner
            # Whether stores answer is told by readiness only: a restart mends none.
            assert one["readinessProbe"]["httpGet"]["path"] == "/readyz", owner


@each_set
def test_database_has_room_for_every_pool(name):
    limits = (ROOT / "control-plane/store-sql/src/limits.rs").read_text()
    pool = int(re.search(r"connections: (\d+),", limits)[1])
    helper = (ROOT / "charts/tidegate/templates/_checks.tpl").read_text()
    each = int(re.search(r'"tidegate.connectionsPerControlPlane" -}}(\d+){{', helper)[1])
    # One is for leadership.
    assert each == pool + 1
    objects = rendered(name)
    for one in of_kind(objects, "StatefulSet"):
        if one["metadata"]["name"].endswith("-control-plane"):
            (server,) = [
                [*server["spec"]["template"]["spec"]["containers"][0]["args"]]
                for server in of_kind(objects, "StatefulSet")
                if server["metadata"]["name"].endswith("-postgres")
            ] or [None]
            if server:
                allowed = int(server[-1].removeprefix("max_connections="))
                assert one["spec"]["replicas"] * each + 1 <= allowed - 3


@each_set
def test_scaling_and_disruption_leave_somebody(name):
    objects = rendered(name)
    deployments = {one["metadata"]["name"]: one for one in of_kind(objects, "Deployment")}
    scaled = set()
    for one in of_kind(objects, "HorizontalPodAutoscaler"):
        target = one["spec"]["scaleTargetRef"]
        assert target["kind"] == "Deployment" and "replicas" not in deployments[target["name"]]["spec"]
        resources = deployments[target["name"]]["spec"]["template"]["spec"]["containers"][0]["resources"]
        # A share of what is asked for can be told only where something is.
        assert {metric["resource"]["name"] for metric in one["spec"]["metrics"]} <= set(resources["requests"])
        scaled.add(target["name"])
    for one in deployments.values():
        assert ("replicas" in one["spec"]) != (one["metadata"]["name"] in scaled), title(one)
    for one in of_kind(objects, "PodDisruptionBudget"):
        assert one["spec"]["maxUnavailable"] == 1


@each_set
def test_everything_ours_that_listens_is_scraped_once(name):
    objects = rendered(name)
    for monitor in of_kind(objects, "ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        (service,) = [one for one in of_kind(objects, "Service") if matches(selector, one["metadata"]["labels"])]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
        assert service["spec"]["clusterIP"] == "None"
    if of_kind(objects, "ServiceMonitor"):
        ours = [
            owner
            for owner, _, spec in pods(objects)
            if "ports" in spec["containers"][0] and binary_of(spec["containers"][0])
        ]
        assert len(of_kind(objects, "ServiceMonitor")) == len(ours)


@each_set
def test_data_planes_and_control_planes_show_the_same_token(name):
    objects = rendered(name)
    shown = {
        binary_of(one): environment(objects, one)["TIDEGATE_DATA_PLANE_TOKEN"]
        for _, _, spec in pods(objects)
        for one in containers(spec)
        if "TIDEGATE_DATA_PLANE_TOKEN" in environment(objects, one)
    }
    assert len(set(shown.values())) <= 1, shown


def test_value_sets_use_every_secret():
    used = " ".join(str(rendered(name)) for name in SETS)
    assert all(secret_name in used for secret_name in SECRETS)
    assert secret(rendered("default"), "tidegate-generated")["admin-token"]


@pytest.mark.parametrize("name", ["configured", "embedded"])
def test_document_arrives_as_it_was_written(name):
    written = yaml.safe_load((HERE / "values" / f"{name}.yaml").read_text())["configuration"]["document"]
    (one,) = of_kind(rendered(name), "ConfigMap")
    assert yaml.safe_load(one["data"]["tidegate.yaml"]) == written
    # A number that other ways would write as 1.5e+06.
    assert written["settings"]["streams"]["bodyTimeoutMs"] == 1500000
    assert "1500000" in one["data"]["tidegate.yaml"]


@pytest.mark.parametrize(
    "status,passes,says",
    [
        ("200 OK", True, ""),
        ("401 Unauthorized", True, ""),
        ("503 Service Unavailable", False, "tidegatectl apply"),
        ("500 Internal Server Error", False, "no data plane"),
        (None, False, "no data plane"),
    ],
)
def test_helm_test_fails_when_nothing_is_served(status, passes, says, tmp_path):
    (spec,) = [spec for owner, _, spec in pods(rendered("default")) if owner == "Pod/tidegate-test"]
    (one,) = [one for one in spec["containers"] if one["name"] == "models"]
    # What the one of busybox writes.
    said = f"  HTTP/1.1 {status}" if status else "wget: can't connect to remote host: Connection refused"
    wget = tmp_path / "wget"
    wget.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    wget.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", *one["command"][1:], *one["args"]], env={"PATH": tmp_path}, capture_output=True, text=True
    )
    assert (done.returncode == 0) == passes, done
    assert says in done.stdout and said in done.stdout, done


def test_data_planes_may_be_ready_without_a_configuration_where_it_is_tried_out():
    flagged = "--ready-without-configuration"

    def has(*values: str) -> bool:
        args = [word for value in values for word in ("--set", value)]
        deployments = of_kind(rendered_with(*args), "Deployment")
        (one,) = [one for one in deployments if one["metadata"]["name"] == "tidegate-data-plane"]
        return flagged in one["spec"]["template"]["spec"]["containers"][0]["args"]

    own = "database.existingSecret=x"
    applied = "configuration.existingSecret=y"
    switch = "dataPlane.readyWithoutConfiguration"
    assert has()
    assert not has(own) and not has(applied) and not has(f"{switch}=false")
    assert has(own, f"{switch}=true") and has(applied, f"{switch}=true")
