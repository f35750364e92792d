//! What the scopes of provider rules do to a request (`routing.md` §4.2, §4.3, §6; `failure-state.md` §5.4, §5.6).

use crate::outcome::UpstreamError;

use super::*;

fn answer(status: u16, body: &str) -> Reply {
    Reply::Failure(Outcome::Response(UpstreamError {
        status,
        body: body.to_owned(),
        ..UpstreamError::default()
    }))
}

fn quota() -> Reply {
    answer(403, "用户额度不足")
}

#[test]
fn vector_routing_x5() {
    let steps = ["agentrouter/m1", "agentrouter/m2"];
    let connections = ["agentrouter/c1", "agentrouter/c2"];
    let mut world = World::combo(&connections, &steps, json!({"maxRetries": 0}), no_waits());
    let journey = world.run(|_, before| match before {
        0 => quota(),
        _ => Reply::Success,
    });
    assert_eq!(
        journey.attempts,
        ["agentrouter/c1/m1", "agentrouter/c2/m1"],
        "another account goes on"
    );
    let mut world = World::combo(&connections[..1], &steps, json!({}), no_waits());
    let journey = world.run(|_, _| quota());
    assert_eq!(
        journey.attempts,
        ["agentrouter/c1/m1"],
        "not asked again, although a plain 429 would relax the filter"
    );
    let rejection = journey.rejection();
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (429, Some(60)),
        "{rejection:?}"
    );
    assert_eq!(rejection.code, "quota_exhausted");
}

/// The connection is ruled out for the request also where it does not cool.
#[test]
fn a_quota_of_a_connection_that_does_not_cool_holds_for_the_request() {
    let mut world = World::combo(
        &["agentrouter/c1"],
        &["agentrouter/m1", "agentrouter/m2"],
        json!({"maxRetries": 3}),
        no_waits(),
    )
    .without_cooling();
    let journey = world.run(|_, _| quota());
    assert_eq!(journey.attempts, ["agentrouter/c1/m1"]);
}

#[test]
fn a_wait_that_the_upstream_asked_for_is_told_instead() {
    let mut world = World::combo(
        &["agentrouter/c1"],
        &["agentrouter/m"],
        json!({"maxRetries": 0}),
        no_waits(),
    );
    let journey = world.run(|_, _| {
        Reply::Failure(Outcome::Response(UpstreamError {
            status: 403,
            headers: vec![("retry-after".to_owned(), "5".to_owned())],
            body: "额度不足".to_owned(),
            embedded: false,
        }))
    });
    assert_eq!(journey.rejection().retry_after_secs, Some(5));
}

/// A wait that nobody asked for is told to the client alone; no request waits for it.
#[test]
fn the_advertised_wait_is_no_timer() {
    let mut world = World::combo(
        &["agentrouter/c1"],
        &["agentrouter/m"],
        json!({"maxRetries": 0}),
        json!({}),
    );
    let journey = world.run(|_, _| quota());
    assert_eq!(journey.waits, []);
    assert_eq!(journey.rejection().retry_after_secs, Some(60));
}

#[test]
fn access_denied_to_one_model_leaves_the_others() {
    let mut world = World::combo(
        &["agentrouter/c1"],
        &["agentrouter/m1", "agentrouter/m2"],
        json!({"maxRetries": 1}),
        no_waits(),
    );
    let journey = world.run(|name, _| {
        if name.ends_with("m1") {
            answer(403, "无权访问模型 m1")
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["agentrouter/c1/m1", "agentrouter/c1/m2"]);
}

#[test]
fn a_rule_about_the_provider_rules_out_all_its_targets() {
    let rules = json!({
        "waitForCooldown": {"enabled": false},
        "comboCooldownWait": {"enabled": false},
        "providerErrorRules": {
            "p1": [{"status": 503, "match": "maintenance", "scope": "provider"}],
        },
    });
    let mut world = World::combo(
        &["p1/c1", "p1/c2", "p2/c9"],
        &["p1/m1", "p1/c2/m2", "p2/m3"],
        json!({"maxRetries": 2}),
        rules,
    );
    let journey = world.run(|name, _| {
        if name.starts_with("p1") {
            answer(503, "in maintenance")
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["p1/c1/m1", "p2/c9/m3"]);
}
