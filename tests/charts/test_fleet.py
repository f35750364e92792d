"""The fleet of an installation comes up by itself, whoever is there first, serves and ends."""

from __future__ import annotations

from chart import of_kind, rendered, secret
from fleet import Fleet


def test_fleet_comes_up_by_itself_serves_and_ends(machine, trees):
    fleet = Fleet(machine, trees, rendered("configured"))
    # Nobody waits for anybody to be there first: the stores come last.
    for name in fleet.data_planes:
        fleet.start(name, "data-plane")
    for name in fleet.control_planes:
        fleet.start(name, "control-plane")
    status, _ = fleet.get(fleet.data_planes[0], 8081, "/livez", 200)
    assert status == 200
    status, _ = fleet.get(fleet.data_planes[0], 8081, "/readyz", 503)
    assert status == 503, "there is no configuration yet"
    fleet.start_postgres()
    fleet.start_redis()
    for name in fleet.control_planes:
        fleet.is_ready(name, "control-plane")

    job = next(one for one in of_kind(fleet.objects, "Job"))
    fleet.run_job("configure", "job", tries=job["spec"]["backoffLimit"] + 1)
    for name in fleet.data_planes:
        fleet.is_ready(name, "data-plane")
        port = fleet.by_component["data-plane"]["containers"][0]["ports"][0]["containerPort"]
        status, _ = fleet.get(name, port, "/v1/models", 401)
        assert status == 401
        key = secret(fleet.objects, "provider-keys")["TEAM_API_KEY"]
        status, body = fleet.get(name, port, "/v1/models", 200, Authorization=f"Bearer {key}")
        assert status == 200, body
        # Metrics are not where clients are.
        status, body = fleet.get(name, port, "/metrics", 404)
        assert status == 404, body
    # What `helm test` asks first.
    fleet.run_job("test", "test", tries=1)
    assert "control_planes" in fleet.machine.log("test") or "tidegate-control-plane" in fleet.machine.log("test")

    # One of each goes, the other goes on.
    fleet.end("control-plane", fleet.control_planes[0])
    fleet.end("data-plane", fleet.data_planes[0])
    fleet.is_ready(fleet.control_planes[1], "control-plane")
    fleet.is_ready(fleet.data_planes[1], "data-plane")
