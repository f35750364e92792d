//! A decision waits for a store that is silent no longer than each of its own limits says. Whoever waited longer would wait
//! longer than a test does, or look at the store more often.

use std::time::Duration;

use rstest::rstest;
use tidegate_control::plane::DecisionLimits;
use tidegate_proto::config::v1 as config;
use tidegate_proto::routing::v1 as routing;
use tidegate_proto::routing::v1::decide_response::Step;

use crate::fleet::{ALPHA, Fleet, Replica, connection, decide_request, document, provider, within};

use super::{half_open, probe_of};

/// Longer than a test waits for anything.
const FOR_EVER: Duration = Duration::from_secs(600);
/// The whole decision is limited.
const WHOLE: DecisionLimits = DecisionLimits {
    decide: Duration::from_millis(300),
    store_call: FOR_EVER,
};
/// Each call to the store is.
const EACH_CALL: DecisionLimits = DecisionLimits {
    decide: FOR_EVER,
    store_call: Duration::from_millis(100),
};

/// What a decision asks the store for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grant {
    Probe,
    Turn,
    Pin,
}

impl Grant {
    /// The call by its name in metrics.
    fn call(self) -> &'static str {
        match self {
            Self::Probe => "write",
            Self::Turn => "turn",
            Self::Pin => "cell",
        }
    }

    /// A question that needs it.
    fn question(self) -> routing::DecideRequest {
        let mut request = decide_request(8, 1);
        let facts = request.facts.as_mut().unwrap();
        match self {
            Self::Probe => {}
            Self::Turn => facts.model = "deck".to_owned(),
            Self::Pin => facts.session_key = "header:s".to_owned(),
        }
        request
    }
}

/// [`document`] with a second account, which makes sessions of some use, a combo that takes turns, and an account whose
/// permits are counted.
fn with_everything() -> config::Document {
    let mut wanted = document();
    let mut settings: serde_json::Value = serde_json::from_str(&wanted.settings_json).unwrap();
    settings["sessionAffinityTtlMs"] = serde_json::json!(600_000);
    wanted.settings_json = settings.to_string();
    wanted.connections.push(connection("a2", ALPHA, 2));
    wanted.providers.push(provider("gamma", 7));
    let mut capped = connection("g1", "gamma", 1);
    capped.max_concurrent = Some(1);
    wanted.connections.push(capped);
    let step = |model: &str| config::Step {
        model: model.to_owned(),
        ..config::Step::default()
    };
    wanted.combos.push(config::Combo {
        name: "deck".to_owned(),
        strategy: "strict-random".to_owned(),
        steps: vec![step("alpha/m"), step("beta/m")],
        ..config::Combo::default()
    });
    wanted
}

async fn limited(limits: DecisionLimits) -> (Fleet, [Replica; 2]) {
    let mut fleet = Fleet::new().await;
    fleet.hot_call_limit = FOR_EVER;
    fleet.decision_limits = limits;
    let replicas = fleet.replicas_with(with_everything()).await;
    (fleet, replicas)
}

fn failed_calls(replica: &Replica, call: &str) -> u64 {
    replica.counter(&format!(
        "hot_store_calls_total{{call=\"{call}\",result=\"failed\"}}"
    ))
}

#[rstest]
#[tokio::test]
async fn a_silent_store_is_given_up(
    #[values(WHOLE, EACH_CALL)] limits: DecisionLimits,
    #[values(Grant::Probe, Grant::Turn, Grant::Pin)] grant: Grant,
) {
    let (fleet, [one, other]) = limited(limits).await;
    if grant == Grant::Probe {
        half_open(&fleet, [&one, &other]).await;
    }
    one.hot.freeze();
    let asking = async { one.routing().decide(grant.question()).await };
    let answer = within("the answer", asking).await.unwrap().into_inner();
    if grant == Grant::Probe {
        assert_eq!(probe_of(&answer), None, "it was not given by the store");
    }
    assert!(failed_calls(&one, grant.call()) > 0, "it was not asked");
}

/// A permit is asked for behind the decision, again and again for seconds, by a worker whose calls have a limit of their own.
#[tokio::test]
async fn a_permit_that_is_long_in_coming_is_given_up() {
    let (_fleet, [one, _]) = limited(WHOLE).await;
    one.hot.answer_no_swap_in_time(true);
    let mut request = decide_request(8, 1);
    request.facts.as_mut().unwrap().model = "gamma/m".to_owned();
    let asking = async { one.routing().decide(request).await };
    let answer = within("the answer", asking).await.unwrap().into_inner();
    if let Step::Dispatch(dispatch) = answer.step.as_ref().unwrap() {
        assert!(!dispatch.permit, "{answer:?}");
    }
    let asked = failed_calls(&one, "swap");
    // The worker gives up after 64.
    assert!((1..32).contains(&asked), "asked {asked} times");
}
