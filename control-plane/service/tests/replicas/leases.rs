//! Exclusive leases over replicas that share their stores.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as config;
use tidegate_proto::lease::v1 as lease;
use tidegate_proto::lease::v1::lease_service_client::LeaseServiceClient;
use tidegate_proto::routing::v1 as routing;
use tidegate_proto::routing::v1::decide_response::Step;
use tonic::Status;
use tonic::transport::Channel;

use crate::fleet::{
    ALPHA, Fleet, Replica, connection, decide_request, document as others, eventually, failure,
    provider,
};

mod in_flight;
mod lifecycle;
mod postgres;
mod requests;
mod shown;

const KEY: &str = "k1";
const OTHER_KEY: &str = "k2";

/// Accounts c1, c2, … of one provider, which a key and another one may lease.
fn document(accounts: usize) -> config::Document {
    let names: Vec<String> = (1..=accounts).map(|number| format!("c{number}")).collect();
    let managed = |id: &str| config::ApiKey {
        id: id.to_owned(),
        // Of a text that nobody knows.
        sha256: format!("{:0>64}", id.trim_start_matches('k')),
        allowed_connections: names.clone(),
        scopes: vec!["lease:exclusive".to_owned()],
        ..config::ApiKey::default()
    };
    let connections = names.iter().zip(1..).map(|(name, priority)| {
        let mut account = connection(name, ALPHA, priority);
        account.disable_cooling = false;
        account
    });
    config::Document {
        providers: vec![provider(ALPHA, 9)],
        connections: connections.collect(),
        keys: vec![managed(KEY), managed(OTHER_KEY)],
        ..others()
    }
}

async fn fleet<const N: usize>(accounts: usize) -> (Fleet, [Replica; N]) {
    let fleet = Fleet::new().await;
    let replicas = fleet.replicas_with(document(accounts)).await;
    (fleet, replicas)
}

/// The hash of an owner; any 32 bytes are one.
fn owner(letter: char) -> Vec<u8> {
    vec![u8::try_from(letter).unwrap(); 32]
}

fn name(letter: char, generation: u64) -> common::LeaseName {
    common::LeaseName {
        owner_sha256: owner(letter),
        generation,
    }
}

fn acquire_request(letter: char) -> lease::AcquireRequest {
    lease::AcquireRequest {
        owner_sha256: owner(letter),
        key_id: KEY.to_owned(),
        model: "alpha/m".to_owned(),
        ttl_ms: 0,
        configuration_version: 1,
    }
}

/// Where a request is sent, or its final answer.
type Sent = Result<String, Box<routing::Reject>>;

/// An answer of the service without its envelope.
type Said<T = lease::Lease> = Result<T, common::LeaseRefusal>;

impl Replica {
    fn leases(&self) -> LeaseServiceClient<Channel> {
        LeaseServiceClient::new(self.channel.clone())
    }

    async fn try_acquire(&self, request: lease::AcquireRequest) -> Result<Said, Status> {
        use lease::acquire_response::Answer;
        let response = self.leases().acquire(request).await?;
        Ok(match response.into_inner().answer.unwrap() {
            Answer::Lease(lease) => Ok(lease),
            Answer::Refused(refused) => Err(refused),
        })
    }

    async fn acquire(&self, letter: char) -> Said {
        self.try_acquire(acquire_request(letter)).await.unwrap()
    }

    async fn try_renew(&self, request: lease::RenewRequest) -> Result<Said, Status> {
        use lease::renew_response::Answer;
        let response = self.leases().renew(request).await?;
        Ok(match response.into_inner().answer.unwrap() {
            Answer::Lease(lease) => Ok(lease),
            Answer::Refused(refused) => Err(refused),
        })
    }

    async fn renew(&self, letter: char, generation: u64, key: &str) -> Said {
        let request = lease::RenewRequest {
            lease: Some(name(letter, generation)),
            key_id: key.to_owned(),
            ttl_ms: 0,
        };
        self.try_renew(request).await.unwrap()
    }

    async fn try_release(&self, request: lease::ReleaseRequest) -> Result<Said, Status> {
        use lease::release_response::Answer;
        let response = self.leases().release(request).await?;
        Ok(match response.into_inner().answer.unwrap() {
            Answer::Lease(lease) => Ok(lease),
            Answer::Refused(refused) => Err(refused),
        })
    }

    async fn release(&self, letter: char, generation: u64, key: &str) -> Said {
        let request = lease::ReleaseRequest {
            lease: Some(name(letter, generation)),
            key_id: key.to_owned(),
            reason: String::new(),
        };
        self.try_release(request).await.unwrap()
    }

    async fn standing(&self, letter: char, generation: u64) -> Said<lease::LeaseStanding> {
        use lease::status_response::Answer;
        let request = lease::StatusRequest {
            lease: Some(name(letter, generation)),
            key_id: KEY.to_owned(),
        };
        let response = self.leases().status(request).await.unwrap();
        match response.into_inner().answer.unwrap() {
            Answer::Standing(standing) => Ok(standing),
            Answer::Refused(refused) => Err(refused),
        }
    }

    async fn fence(&self, registration: lease::Registration) -> lease::fence_response::Answer {
        let request = lease::FenceRequest {
            registration: Some(registration),
            key_id: KEY.to_owned(),
        };
        let response = self.leases().fence(request).await.unwrap();
        response.into_inner().answer.unwrap()
    }

    async fn renew_activity(&self, activity: &lease::Registration) -> Option<lease::Grant> {
        let request = lease::RenewActivityRequest {
            registration: Some(activity.clone()),
        };
        let response = self.leases().renew_activity(request).await.unwrap();
        response.into_inner().grant
    }

    async fn ask(&self, request: routing::DecideRequest) -> Step {
        let answer = self.routing().decide(request).await.unwrap();
        answer.into_inner().step.unwrap()
    }

    /// Where a request under this lease is sent.
    async fn sent_to(&self, letter: char, generation: u64) -> Sent {
        sent_to(self.ask(question(letter, generation, 1)).await)
    }

    /// The account of this attempt has failed so that it cools down, and this replica knows it.
    async fn cools(&self, attempt: &common::Attempt) {
        self.cools_late(attempt, 0).await;
    }

    /// The same where the store's clock has stepped forward by `stepped_ms`.
    async fn cools_late(&self, attempt: &common::Attempt, stepped_ms: u64) {
        // A data plane that reports for the first time.
        static PLANE: AtomicU64 = AtomicU64::new(1_000);
        let plane = PLANE.fetch_add(1, Ordering::Relaxed);
        let mut reporting = self.report().await;
        let mut failed = failure(plane, 1, attempt);
        let report = failed.report.as_mut().unwrap();
        report.occurred_at_unix_ms += stepped_ms;
        let outcome = report.outcome.as_mut().unwrap();
        if let Some(common::outcome::Kind::Response(answer)) = &mut outcome.kind {
            answer.status = 429;
        }
        reporting.send(plane, vec![failed]).await;
        reporting.acknowledged_to(1).await;
        eventually("the cooldown", async || {
            self.connection(&attempt.connection).await.state != "active"
        })
        .await;
    }
}

/// What is sent.
fn dispatched(step: Step) -> common::Attempt {
    match step {
        Step::Dispatch(dispatch) => dispatch.attempt.unwrap(),
        other => panic!("expected a dispatch: {other:?}"),
    }
}

fn registration(letter: char, connection: &str, number: u64) -> lease::Registration {
    lease::Registration {
        lease: Some(name(letter, 1)),
        connection: connection.to_owned(),
        plane: 7,
        number,
    }
}

/// A question of a request under a lease.
fn question(letter: char, generation: u64, number: u64) -> routing::DecideRequest {
    let mut request = decide_request(7, number);
    let facts = request.facts.as_mut().unwrap();
    facts.key_id = KEY.to_owned();
    facts.lease = Some(name(letter, generation));
    request
}

fn sent_to(step: Step) -> Sent {
    match step {
        Step::Dispatch(dispatch) => Ok(dispatch.attempt.unwrap().connection),
        Step::Reject(reject) => Err(Box::new(reject)),
        other @ (Step::Wait(_) | Step::Plan(_)) => panic!("neither sent nor refused: {other:?}"),
    }
}

/// The code of a refusal.
fn code<T: std::fmt::Debug>(said: Said<T>) -> String {
    said.unwrap_err().code
}

/// Status and code of a final answer, which is one of a lease.
fn refused(answer: Sent) -> (u32, String) {
    let reject = answer.unwrap_err();
    let lease = reject.lease.expect("a refusal of a lease");
    assert_eq!(lease.code, reject.code);
    assert_eq!(reject.error_type, "lease_error");
    (reject.status, reject.code)
}

/// Status and code of a final answer, which has nothing to do with leases.
fn ordinary(answer: Sent) -> (u32, String) {
    let reject = answer.unwrap_err();
    assert_eq!(reject.lease, None);
    (reject.status, reject.code)
}
