"""An installation whose stores come late, or whose Secrets are wrong: what is said, and that it comes up by itself."""

from __future__ import annotations

from chart import SECRETS, of_kind, rendered, rendered_with, secret, values_file
from fleet import LIMIT, Fleet

AWAY = "the database is not there yet"


def own_stores():
    """As an operator who has both: with Secrets of which the chart knows the names only."""
    own = "database.existingSecret=own-database,redis.existingSecret=own-redis"
    return rendered_with("--values", values_file("configured"), "--set", own)


def test_stores_that_come_late_are_waited_for_and_nothing_is_lost(machine, trees, monkeypatch):
    bundled = rendered("configured")
    made = secret(bundled, "tidegate-generated")
    monkeypatch.setitem(SECRETS, "own-database", {"database-url": made["database-url"]})
    monkeypatch.setitem(SECRETS, "own-redis", {"redis-url": made["redis-url"]})
    fleet = Fleet(machine, trees, own_stores(), stores=bundled)

    # The hook waits for the database. Another one, left over from an installation that was broken off, changes nothing.
    hooks = ["migrate-1", "migrate-2"]
    for name in hooks:
        fleet.start(name, "migration")
    for name in hooks:
        fleet.says(name, AWAY)
    fleet.start_postgres()
    for name in hooks:
        code = machine.ask("wait", name=name, limit=LIMIT)
        assert code == 0, machine.log(name)
        assert "the database is migrated" in machine.log(name)

    # Without Redis everything runs, is not ready and says why; a configuration is taken all the same.
    for name in fleet.control_planes:
        fleet.start(name, "control-plane")
    for name in fleet.data_planes:
        fleet.start(name, "data-plane")
    for name in fleet.control_planes:
        assert fleet.get(name, 7401, "/livez", 200)[0] == 200, machine.log(name)
        status, body = fleet.get(name, 7401, "/readyz", 503)
        assert (status, "hot state" in body) == (503, True), body
        fleet.says(name, "call to the hot store failed")
    job = next(one for one in of_kind(fleet.objects, "Job") if "configure" in one["metadata"]["name"])
    fleet.run_job("configure", "job", tries=job["spec"]["backoffLimit"] + 1)
    assert fleet.query("SELECT max(version) FROM configuration") == "1"
    fleet.start_redis()
    for name in fleet.control_planes:
        fleet.is_ready(name, "control-plane")
    key = secret(fleet.objects, "provider-keys")["TEAM_API_KEY"]
    for name in fleet.data_planes:
        fleet.is_ready(name, "data-plane")
        status, body = fleet.get(name, 8080, "/v1/models", 200, Authorization=f"Bearer {key}")
        assert status == 200, body
    # By themselves: nothing was started again.
    assert all(fleet.runs(name) for name in fleet.control_planes + fleet.data_planes)


def test_wrong_passwords_are_said_and_a_bare_installation_becomes_ready(machine, trees):
    fleet = Fleet(machine, trees, rendered("default"))
    fleet.start_postgres()
    fleet.start_redis()
    first, second = fleet.control_planes

    # A wrong password for the database does not become right by waiting: the process ends and says it, the password not.
    wrong = "postgres://tidegate:of-another-time@tidegate-postgres:5432/tidegate"
    fleet.start(first, "control-plane", TIDEGATE_DATABASE_URL=wrong)
    code = machine.ask("wait", name=first, limit=LIMIT)
    assert code not in (0, None), machine.log(first)
    assert "password authentication failed" in machine.log(first)
    # One for Redis may: it runs, is not ready, and says it.
    wrong = "redis://:of-another-time@tidegate-redis:6379/0"
    fleet.start(first, "control-plane", TIDEGATE_REDIS_URL=wrong)
    fleet.says(first, "Password authentication failed")
    assert fleet.get(first, 7401, "/readyz", 503)[0] == 503
    machine.ask("terminate", name=first)
    assert machine.ask("wait", name=first, limit=LIMIT) == 0, machine.log(first)
    assert "of-another-time" not in machine.whole_log(first)
    # The kubelet reads Secrets anew for each start of a container.
    for name in (first, second):
        fleet.start(name, "control-plane")
    for name in (first, second):
        fleet.is_ready(name, "control-plane")

    # Nothing was applied: everything is ready, and clients are told what is missing.
    for name in fleet.data_planes:
        fleet.start(name, "data-plane")
    for name in fleet.data_planes:
        fleet.is_ready(name, "data-plane")
        status, body = fleet.get(name, 8080, "/v1/models", 503)
        assert (status, "configuration_unavailable" in body) == (503, True), body
    # The first thing that `helm test` asks is answered all the same.
    fleet.run_job("test", "test", tries=1)
