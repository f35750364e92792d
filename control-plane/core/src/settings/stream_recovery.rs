//! Settings of streams that break or crawl (`sessions-and-streams.md` §4.2 to §4.6). The numbers that
//! [`crate::stream`] runs on.

use serde::{Deserialize, Serialize};

use crate::stream::WatchdogLimits;

use super::member::Member;
use super::overrides::named::{
    ATTEMPT_DEADLINE_MS, CONTINUATION, MIN_BYTES_PER_SECOND, MIN_USEFUL_BYTES, Named, RECOVERY,
    WARMUP_MS, WATCHDOG, WINDOW_MS,
};

/// Members of `streamRecovery`.
pub(super) const MEMBERS: &[Member] = &[
    Member::flag("enabled"),
    Member::flag("continueMidStream"),
    Member::whole("attemptDeadlineMs", ATTEMPT_DEADLINE_MS.bounds),
    Member::members("throughputWatchdog", THROUGHPUT_WATCHDOG),
];

const THROUGHPUT_WATCHDOG: &[Member] = &[
    Member::flag("enabled"),
    Member::whole("warmupMs", WARMUP_MS.bounds),
    Member::whole("windowMs", WINDOW_MS.bounds),
    Member::whole("minUsefulBytesPerSecond", MIN_BYTES_PER_SECOND.bounds),
    Member::whole("minUsefulBytes", MIN_USEFUL_BYTES.bounds),
];

/// `streamRecovery`. Its parts are switched on one by one; each change acts on attempts that begin after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StreamRecoverySettings {
    /// The beginning of a stream is held back for up to 750 ms or 64 KiB, and a stream that breaks meanwhile is opened
    /// again at the same account. Unset = as `STREAM_RECOVERY_ENABLED` says, else no (`sessions-and-streams.md` §4.4).
    pub enabled: Option<bool>,
    /// A chat stream that breaks after its client has seen text is continued by a further request, if that is safe.
    /// Unset = as `STREAM_RECOVERY_MIDSTREAM_ENABLED` says, else no (`sessions-and-streams.md` §4.5).
    pub continue_mid_stream: Option<bool>,
    /// From dispatch to the end of the body, whatever the upstream sends; 0 = off. Unset = as
    /// `UPSTREAM_ATTEMPT_TIMEOUT_MS` says, else 1 800 000 (decision 46).
    pub attempt_deadline_ms: Option<u64>,
    /// Ends streams that go on without getting anywhere.
    pub throughput_watchdog: ThroughputWatchdogSettings,
}

/// `streamRecovery.throughputWatchdog` (`sessions-and-streams.md` §4.2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ThroughputWatchdogSettings {
    /// Streams are watched. Unset = as `STREAM_THROUGHPUT_WATCHDOG_ENABLED` says, else no.
    pub enabled: Option<bool>,
    /// From the first bytes of a stream; nothing is judged before this and a whole window have passed. Unset = as
    /// `STREAM_THROUGHPUT_WATCHDOG_WARMUP_MS` says, else 30 000.
    pub warmup_ms: Option<u64>,
    /// Over which time text is counted. Unset = as `STREAM_THROUGHPUT_WATCHDOG_WINDOW_MS` says, else 30 000.
    pub window_ms: Option<u64>,
    /// Bytes of text a second below which a stream is ended. Unset = as
    /// `STREAM_THROUGHPUT_WATCHDOG_MIN_BYTES_PER_SECOND` says, else 4.
    pub min_useful_bytes_per_second: Option<u64>,
    /// A window with some text, but fewer bytes than this, is too little to judge by. Unset = as
    /// `STREAM_THROUGHPUT_WATCHDOG_MIN_USEFUL_BYTES` says, else 1.
    pub min_useful_bytes: Option<u64>,
}

impl StreamRecoverySettings {
    /// Whether a stream that breaks before its client has seen anything is opened again.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(false)
    }

    /// Whether a stream that breaks later is continued. It does not need [`Self::is_enabled`].
    #[must_use]
    pub fn continues(&self) -> bool {
        self.continue_mid_stream.unwrap_or(false)
    }

    /// What the watchdog runs on; `None` = nobody watches.
    #[must_use]
    pub fn watchdog(&self) -> Option<WatchdogLimits> {
        let settings = &self.throughput_watchdog;
        settings.enabled.unwrap_or(false).then(|| WatchdogLimits {
            warmup_ms: WARMUP_MS.or_built_in(settings.warmup_ms),
            window_ms: WINDOW_MS.or_built_in(settings.window_ms),
            min_useful_bytes_per_second: MIN_BYTES_PER_SECOND
                .or_built_in(settings.min_useful_bytes_per_second),
            min_useful_bytes: MIN_USEFUL_BYTES.or_built_in(settings.min_useful_bytes),
        })
    }

    /// Fills in what the environment decides, and what nobody said.
    pub(super) fn fill_in(&mut self, environment: &Named) {
        let watchdog = &mut self.throughput_watchdog;
        for (member, flag) in [
            (&mut self.enabled, &RECOVERY),
            (&mut self.continue_mid_stream, &CONTINUATION),
            (&mut watchdog.enabled, &WATCHDOG),
        ] {
            *member = Some(flag.acting(*member, environment));
        }
        for (member, number) in [
            (&mut self.attempt_deadline_ms, &ATTEMPT_DEADLINE_MS),
            (&mut watchdog.warmup_ms, &WARMUP_MS),
            (&mut watchdog.window_ms, &WINDOW_MS),
            (
                &mut watchdog.min_useful_bytes_per_second,
                &MIN_BYTES_PER_SECOND,
            ),
            (&mut watchdog.min_useful_bytes, &MIN_USEFUL_BYTES),
        ] {
            *member = Some(number.acting(*member, environment));
        }
    }
}
