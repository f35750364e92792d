//! Where a request would go, in words.

use tidegate_proto::admin::v1 as admin;
use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as config;
use tidegate_proto::routing::v1::decide_response::Step;

use crate::fleet::{
    ALPHA, Fleet, apply_request, connection, decide_request, eventually, failure, provider,
};

const PLANE: u64 = 7;
const ASKED: &str = "alpha/m";

fn document() -> config::Document {
    let mut asked = connection("alpha-1", ALPHA, 1);
    asked.disable_cooling = false;
    config::Document {
        providers: vec![provider(ALPHA, 9), provider("spare", 10)],
        connections: vec![asked, connection("spare-1", "spare", 1)],
        settings_json: r#"{"emergencyFallback": {"provider": "spare", "model": "last"}}"#
            .to_owned(),
        ..config::Document::default()
    }
}

#[tokio::test]
async fn the_emergency_fallback_is_named_though_it_is_not_listed() {
    let (_fleet, [replica]) = Fleet::with_replicas().await;
    let request = admin::ApplyConfigurationRequest {
        expected_version: Some(1),
        ..apply_request(document())
    };
    replica.apply(request).await.unwrap();
    replica.has_configuration(2).await;
    let mut request = decide_request(PLANE, 1);
    request.facts.as_mut().unwrap().model = ASKED.to_owned();
    let decided = replica.routing().decide(request).await.unwrap();
    let Some(Step::Dispatch(dispatch)) = decided.into_inner().step else {
        panic!("it was not sent");
    };
    let mut report = failure(PLANE, 1, &dispatch.attempt.unwrap());
    let outcome = report.report.as_mut().unwrap().outcome.as_mut().unwrap();
    if let Some(common::outcome::Kind::Response(error)) = &mut outcome.kind {
        error.status = 402;
    }
    let mut reporting = replica.report().await;
    reporting.send(PLANE, vec![report]).await;
    reporting.acknowledged_to(1).await;
    eventually("the fallback to be named", async || {
        let request = admin::ExplainRequest {
            model: ASKED.to_owned(),
            ..admin::ExplainRequest::default()
        };
        let explained = replica.admin().explain(request).await.unwrap().into_inner();
        explained.decision == "dispatch"
            && explained.message == "would go to the emergency fallback spare/last (spare-1)"
    })
    .await;
}
