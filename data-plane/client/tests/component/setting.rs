//! The configuration, the requests and the reports of these tests, and how they wait.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::classify::{ClassifyContext, classify};
use tidegate_core::config::{Config, Document, Protocol};
use tidegate_core::ids::{AttemptId, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
use tidegate_core::outcome::{Attempt, AttemptOutcome, Outcome, UpstreamError};
use tidegate_core::routing::{AttemptsSoFar, RequestFacts};
use tidegate_core::settings::Overrides;
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tidegate_plane_client::endpoint::Address;
use tidegate_plane_client::{
    Answer, Ask, Dispatch, Origin, PermitWaits, PlaneClient, PlaneClientConfig, Step,
};
use tidegate_proto::config::v1 as config;
use tidegate_proto::routing::v1 as routing;
use tidegate_wire::document;
use tidegate_wire::routing::classification_to_proto;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::fake::{Replica, Store};

/// The store's time as all replicas tell it.
pub(crate) const STORE_TIME: u64 = 1_700_000_000_000;

/// Two providers with a connection each, and two combos over both. A third failure opens a breaker.
const DOCUMENT: &str = r#"{
    "providers": [{"id": "a", "protocol": "openai", "baseUrl": "https://a.test/v1"},
        {"id": "b", "protocol": "openai", "baseUrl": "https://b.test/v1"},
        {"id": "c", "protocol": "openai", "baseUrl": "https://c.test/v1"}],
    "connections": [{"id": "a1", "provider": "a"}, {"id": "b1", "provider": "b"},
        {"id": "c1", "provider": "c", "maxConcurrent": 4}],
    "combos": [{"name": "smart", "steps": ["a/m", "b/m"]},
        {"name": "combo", "strategy": "lkgp", "steps": ["a/m", "b/m"]}],
    "settings": {"providerBreaker": {"dedupConnectionMs": 0,
        "apikey": {"failureThreshold": 3, "degradationThreshold": 2, "resetTimeoutMs": 60000}},
        "connectionCooldown": {"apikey": {"baseCooldownMs": 0}}}
}"#;

pub(crate) fn document() -> Document {
    serde_json::from_str(DOCUMENT).unwrap()
}

pub(crate) fn snapshot(version: u64) -> config::Snapshot {
    let credential = |connection: &str| config::Credential {
        connection: connection.to_owned(),
        version: 3,
        secret: format!("secret of {connection}").into_bytes(),
    };
    config::Snapshot {
        version,
        document: Some(document::to_proto(&document())),
        credentials: vec![credential("a1"), credential("b1"), credential("c1")],
        ..config::Snapshot::default()
    }
}

/// A client with its replicas.
pub(crate) struct Setting {
    pub(crate) client: PlaneClient,
    pub(crate) replicas: Vec<Arc<Replica>>,
    pub(crate) store: Arc<Mutex<Store>>,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Setting {
    /// Starts `count` replicas and a client that has its configuration.
    pub(crate) async fn start(count: usize) -> Self {
        let setting = Self::start_with(count, |address| address, |_| {});
        setting.client_is_ready().await;
        setting
    }

    /// The same with addresses and configuration changed, and without waiting.
    pub(crate) fn start_with(
        count: usize,
        over: impl Fn(Address) -> Address,
        change: impl FnOnce(&mut PlaneClientConfig),
    ) -> Self {
        let store = Arc::new(Mutex::new(Store::default()));
        let (replicas, addresses): (Vec<_>, Vec<_>) = (0..count)
            .map(|index| {
                let (replica, address) = Replica::start(&format!("replica-{index}"), &store);
                (replica, over(address))
            })
            .unzip();
        let mut config = PlaneClientConfig::new("test", addresses);
        change(&mut config);
        Self::start_client(config, replicas, store)
    }

    /// Over TCP, with real time.
    pub(crate) async fn start_over_tcp() -> Self {
        let store = Arc::new(Mutex::new(Store::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let replica = Replica::serve(&store, TcpListenerStream::new(listener));
        let address = Address::Tcp(uri.parse().unwrap());
        let config = PlaneClientConfig::new("test", vec![address]);
        Self::start_client(config, vec![replica], store)
    }

    fn start_client(
        config: PlaneClientConfig,
        replicas: Vec<Arc<Replica>>,
        store: Arc<Mutex<Store>>,
    ) -> Self {
        let tracker = TaskTracker::new();
        let stop = CancellationToken::new();
        let client = PlaneClient::start(config, &tracker, stop.clone()).unwrap();
        Self {
            client,
            replicas,
            store,
            tracker,
            stop,
        }
    }

    pub(crate) async fn client_is_ready(&self) {
        until("there is a configuration and a heartbeat", || {
            self.client.is_ready() && self.client.status().following
        })
        .await;
    }

    /// The replica that is asked first, and the others.
    pub(crate) fn home_and_others(&self) -> (Arc<Replica>, Vec<Arc<Replica>>) {
        let status = self.client.status();
        let mut others = self.replicas.clone();
        let home = status.replicas.iter().position(|replica| replica.home);
        let home = others.remove(home.unwrap());
        (home, others)
    }

    /// Asks for the model with a new attempt.
    pub(crate) async fn decide(&self, model: &str) -> Answer {
        self.client
            .decide(ask(self.client.next_attempt(), model))
            .await
    }

    /// Reports how a new attempt on a connection ended.
    pub(crate) fn reports(&self, connection: &str, status: u16, urgent: bool) {
        let id = self.client.next_attempt();
        let mut report = outcome(id.number, connection, status);
        report.attempt.id = id;
        report.occurred_at = self.client.now();
        self.client.report(report, urgent);
    }

    /// Ends the client and waits for its tasks.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

pub(crate) fn ask(attempt: AttemptId, model: &str) -> Ask {
    Ask {
        attempt,
        facts: Arc::new(RequestFacts::new(model, Protocol::Openai)),
        stream: false,
        so_far: Arc::new(AttemptsSoFar::default()),
        last_failure: None,
        egress: None,
        replaces: None,
        waited: PermitWaits::default(),
        origin: Origin::default(),
    }
}

pub(crate) fn attempt(number: u64, connection: &str) -> Attempt {
    let provider = connection.trim_end_matches(char::is_numeric);
    Attempt {
        id: AttemptId {
            plane: PlaneIncarnation(1),
            number,
        },
        provider: ProviderId::new(provider).unwrap(),
        connection: ConnectionId::new(connection).unwrap(),
        model: ModelId::new("m").unwrap(),
        decided_on: Version::default(),
        epoch: Version::default(),
        credential_version: 1,
        egress: None,
        probe: false,
        synthetic: false,
    }
}

pub(crate) fn failure(status: u16) -> Outcome {
    Outcome::Response(UpstreamError {
        status,
        ..UpstreamError::default()
    })
}

pub(crate) fn outcome(number: u64, connection: &str, status: u16) -> AttemptOutcome {
    AttemptOutcome {
        attempt: attempt(number, connection),
        outcome: if status == 200 {
            Outcome::Success
        } else {
            failure(status)
        },
        occurred_at: Timestamp(STORE_TIME),
        next_target_same_provider: false,
        combo: false,
        count: 1,
    }
}

/// What a control plane says of any failure.
pub(crate) fn classification() -> routing::Classification {
    let config = Config::build(document(), 1, &Overrides::default()).unwrap();
    let provider = ProviderId::new("a").unwrap();
    let model = ModelId::new("m").unwrap();
    let policy = &config.provider(&provider).unwrap().policy;
    let context = ClassifyContext::of(&provider, policy, &model, Timestamp(STORE_TIME));
    classification_to_proto(&classify(&failure(500), &context))
}

/// The dispatch in an answer.
pub(crate) fn dispatched(answer: &Answer) -> &Dispatch {
    match &answer.decision {
        Step::Dispatch(dispatch) => dispatch,
        step @ (Step::Wait { .. } | Step::AwaitPermit(_) | Step::Reject(_) | Step::Plan(_)) => {
            panic!("not a dispatch: {step:?}")
        }
    }
}

/// The connection an answer dispatches to.
pub(crate) fn connection(answer: &Answer) -> &str {
    dispatched(answer).attempt.connection.as_str()
}

/// Waits for a condition, at most two minutes of the test's time.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < limit, "it never came: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}
