//! What a client is started with.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::endpoint::{Address, ChannelSettings, TlsSettings};

/// How to reach the control plane, and what may be kept while it is away.
#[derive(Clone)]
pub struct PlaneClientConfig {
    /// This data plane's name, for people.
    pub name: String,
    /// The control plane's replicas, 1 to [`crate::MAX_REPLICAS`].
    pub addresses: Vec<Address>,
    /// Keep-alive and dialling.
    pub channel: ChannelSettings,
    /// Certificates for `https` addresses.
    pub tls: Option<TlsSettings>,
    /// The token that planes share, shown with every call.
    pub token: Option<SecretString>,
    /// Where the last snapshot is kept, so that this data plane can start while the control plane is away
    /// (decision 55). **The file holds credentials in the clear**; it is made readable for its owner only.
    /// Unset: nothing is kept.
    pub snapshot_file: Option<PathBuf>,
    /// A control plane that says that nothing was ever applied is enough to be ready. Otherwise a configuration is needed,
    /// so that a rollout onto an empty database stops before the data planes that still have one are gone.
    pub ready_without_configuration: bool,
    /// Time limits and bounds.
    pub limits: Limits,
}

impl PlaneClientConfig {
    /// The defaults for these replicas.
    #[must_use]
    pub fn new(name: impl Into<String>, addresses: Vec<Address>) -> Self {
        Self {
            name: name.into(),
            addresses,
            channel: ChannelSettings::default(),
            tls: None,
            token: None,
            snapshot_file: None,
            ready_without_configuration: false,
            limits: Limits::default(),
        }
    }
}

impl fmt::Debug for PlaneClientConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PlaneClientConfig")
            .field("name", &self.name)
            .field("addresses", &self.addresses)
            .field("channel", &self.channel)
            .field("tls", &self.tls)
            .field("token", &self.token.is_some())
            .field("snapshot_file", &self.snapshot_file)
            .field(
                "ready_without_configuration",
                &self.ready_without_configuration,
            )
            .field("limits", &self.limits)
            .finish()
    }
}

/// Time limits and bounds. The defaults are those of `architecture.md` §2 and §3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Everything a decision may take, the control plane's part included (decision 54).
    pub decide: Duration,
    /// Everything it may take when it needs a permit and the control plane is there, but slow. Less than
    /// [`Limits::decide`] counts as that.
    pub decide_slow: Duration,
    /// Everything that a decision for a managed request may take (decision 54). It is never made here.
    pub decide_managed: Duration,
    /// Everything that a question about a lease may take.
    pub lease: Duration,
    /// Questions without an answer in a row, after which decisions are made here at once.
    pub timeouts_until_local: u32,
    /// How often the control plane is tried while decisions are made here.
    pub retry_decide_every: Duration,
    /// A replica that sends nothing for this long is left. A control plane of which nothing is heard, or that answers
    /// nothing, for this long is gone.
    pub silence: Duration,
    /// An urgent report without acknowledgement for this long goes to another replica.
    pub urgent: Duration,
    /// How long reports that are not urgent may wait for company.
    pub batch: Duration,
    /// Most reports that wait to be sent.
    pub max_reports: usize,
    /// Most bytes of reports that wait to be sent, about: upstreams' error bodies are in them.
    pub max_report_bytes: usize,
    /// Reports older than this are dropped if they were never sent.
    pub max_report_age: Duration,
    /// Most token records that wait.
    pub max_usages: usize,
    /// How long an end may wait for reports and token records to be delivered.
    pub flush: Duration,
}

impl Limits {
    /// For a control plane in the same process. There is no network that could lose a question, whoever decides here
    /// instead runs on the same cores, and it cannot be gone. So patience costs nothing, and a busy machine must not look
    /// like an outage.
    #[must_use]
    pub fn same_process() -> Self {
        Self {
            decide: Duration::from_secs(2),
            decide_slow: Duration::from_secs(10),
            decide_managed: Duration::from_secs(2),
            lease: Duration::from_secs(2),
            silence: Duration::from_secs(30),
            ..Self::default()
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            decide: Duration::from_millis(50),
            decide_slow: Duration::from_secs(1),
            decide_managed: Duration::from_secs(1),
            lease: Duration::from_secs(1),
            timeouts_until_local: 3,
            retry_decide_every: Duration::from_millis(500),
            silence: Duration::from_secs(3),
            urgent: Duration::from_millis(250),
            batch: Duration::from_millis(100),
            max_reports: 16_384,
            max_report_bytes: 16 * 1024 * 1024,
            max_report_age: Duration::from_secs(300),
            max_usages: 16_384,
            flush: Duration::from_secs(5),
        }
    }
}
