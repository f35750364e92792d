//! Members that variables with names of their own decide, where the document says nothing
//! (`sessions-and-streams.md` §3.3, §4.2, §4.4 to §4.6).
//!
//! A member stands here with its variables, its bounds and what is built in, so that reading the environment,
//! resolving the member and telling people who decided it cannot disagree.

use std::collections::BTreeMap;

use super::super::member::Bounds;
use super::{is_switched_on, parse_number};

const FETCH_TIMEOUT_MS: &str = "FETCH_TIMEOUT_MS";
const REQUEST_TIMEOUT_MS: &str = "REQUEST_TIMEOUT_MS";

/// A number that variables may decide.
#[derive(Debug)]
pub(in crate::settings) struct NamedNumber {
    /// Its path in the settings.
    member: &'static [&'static str],
    /// The first one that is set counts.
    variables: &'static [&'static str],
    /// A value beyond them is brought into them; 0 counts only where they hold it.
    pub(in crate::settings) bounds: Bounds,
    /// What acts where nobody says.
    built_in: u64,
}

/// A switch that a variable may decide, off where nobody says.
#[derive(Debug)]
pub(in crate::settings) struct NamedFlag {
    /// Its path in the settings.
    member: &'static [&'static str],
    variable: &'static str,
}

const LIMIT_MS: Bounds = Bounds::same(0, 3_600_000);
const USEFUL_BYTES: Bounds = Bounds::same(1, 1_000_000);

/// `streams.connectTimeoutMs`.
pub(in crate::settings) const CONNECT_MS: NamedNumber = NamedNumber {
    member: &["streams", "connectTimeoutMs"],
    variables: &["FETCH_CONNECT_TIMEOUT_MS"],
    bounds: Bounds::same(1, 600_000),
    built_in: 30_000,
};
/// `streams.headersTimeoutMs`.
pub(in crate::settings) const HEADERS_MS: NamedNumber = NamedNumber {
    member: &["streams", "headersTimeoutMs"],
    variables: &[
        "FETCH_HEADERS_TIMEOUT_MS",
        FETCH_TIMEOUT_MS,
        REQUEST_TIMEOUT_MS,
    ],
    bounds: LIMIT_MS,
    built_in: 600_000,
};
/// `streams.readinessTimeoutMs`.
pub(in crate::settings) const READINESS_MS: NamedNumber = NamedNumber {
    member: &["streams", "readinessTimeoutMs"],
    variables: &["STREAM_READINESS_TIMEOUT_MS"],
    bounds: LIMIT_MS,
    built_in: 30_000,
};
/// `streams.idleTimeoutMs`.
pub(in crate::settings) const IDLE_MS: NamedNumber = NamedNumber {
    member: &["streams", "idleTimeoutMs"],
    variables: &["STREAM_IDLE_TIMEOUT_MS", REQUEST_TIMEOUT_MS],
    bounds: LIMIT_MS,
    built_in: 300_000,
};
/// `streams.bodyTimeoutMs`.
pub(in crate::settings) const BODY_MS: NamedNumber = NamedNumber {
    member: &["streams", "bodyTimeoutMs"],
    variables: &[
        "FETCH_BODY_TIMEOUT_MS",
        FETCH_TIMEOUT_MS,
        REQUEST_TIMEOUT_MS,
    ],
    bounds: LIMIT_MS,
    built_in: 600_000,
};
/// `streamRecovery.attemptDeadlineMs` (decision 46).
pub(in crate::settings) const ATTEMPT_DEADLINE_MS: NamedNumber = NamedNumber {
    member: &["streamRecovery", "attemptDeadlineMs"],
    variables: &["UPSTREAM_ATTEMPT_TIMEOUT_MS"],
    bounds: LIMIT_MS,
    built_in: 1_800_000,
};
/// `streamRecovery.throughputWatchdog.warmupMs`.
pub(in crate::settings) const WARMUP_MS: NamedNumber = NamedNumber {
    member: &["streamRecovery", "throughputWatchdog", "warmupMs"],
    variables: &["STREAM_THROUGHPUT_WATCHDOG_WARMUP_MS"],
    bounds: Bounds::same(0, 600_000),
    built_in: 30_000,
};
/// `streamRecovery.throughputWatchdog.windowMs`.
pub(in crate::settings) const WINDOW_MS: NamedNumber = NamedNumber {
    member: &["streamRecovery", "throughputWatchdog", "windowMs"],
    variables: &["STREAM_THROUGHPUT_WATCHDOG_WINDOW_MS"],
    bounds: Bounds::same(1_000, 600_000),
    built_in: 30_000,
};
/// `streamRecovery.throughputWatchdog.minUsefulBytesPerSecond`.
pub(in crate::settings) const MIN_BYTES_PER_SECOND: NamedNumber = NamedNumber {
    member: &[
        "streamRecovery",
        "throughputWatchdog",
        "minUsefulBytesPerSecond",
    ],
    variables: &["STREAM_THROUGHPUT_WATCHDOG_MIN_BYTES_PER_SECOND"],
    bounds: USEFUL_BYTES,
    built_in: 4,
};
/// `streamRecovery.throughputWatchdog.minUsefulBytes`.
pub(in crate::settings) const MIN_USEFUL_BYTES: NamedNumber = NamedNumber {
    member: &["streamRecovery", "throughputWatchdog", "minUsefulBytes"],
    variables: &["STREAM_THROUGHPUT_WATCHDOG_MIN_USEFUL_BYTES"],
    bounds: USEFUL_BYTES,
    built_in: 1,
};

const NUMBERS: [&NamedNumber; 10] = [
    &CONNECT_MS,
    &HEADERS_MS,
    &READINESS_MS,
    &IDLE_MS,
    &BODY_MS,
    &ATTEMPT_DEADLINE_MS,
    &WARMUP_MS,
    &WINDOW_MS,
    &MIN_BYTES_PER_SECOND,
    &MIN_USEFUL_BYTES,
];

/// `streamRecovery.enabled`.
pub(in crate::settings) const RECOVERY: NamedFlag = NamedFlag {
    member: &["streamRecovery", "enabled"],
    variable: "STREAM_RECOVERY_ENABLED",
};
/// `streamRecovery.continueMidStream`.
pub(in crate::settings) const CONTINUATION: NamedFlag = NamedFlag {
    member: &["streamRecovery", "continueMidStream"],
    variable: "STREAM_RECOVERY_MIDSTREAM_ENABLED",
};
/// `streamRecovery.throughputWatchdog.enabled`.
pub(in crate::settings) const WATCHDOG: NamedFlag = NamedFlag {
    member: &["streamRecovery", "throughputWatchdog", "enabled"],
    variable: "STREAM_THROUGHPUT_WATCHDOG_ENABLED",
};

const FLAGS: [&NamedFlag; 3] = [&RECOVERY, &CONTINUATION, &WATCHDOG];

/// What the environment says, by variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::settings) struct Named {
    numbers: BTreeMap<&'static str, u64>,
    flags: BTreeMap<&'static str, bool>,
}

impl Named {
    /// Takes a variable over, if it is one of these and its value can be understood.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        if let Some(flag) = FLAGS.iter().find(|flag| flag.variable == name) {
            self.flags.insert(flag.variable, is_switched_on(value));
        } else if let Some(variable) = number_variable(name)
            && let Some(number) = parse_number(value)
        {
            let number = u64::try_from(number).unwrap_or(u64::MAX);
            self.numbers.insert(variable, number);
        }
    }

    /// The variable that decides a member, when one does.
    pub(super) fn variable_of(&self, path: &[&str]) -> Option<&'static str> {
        let number = NUMBERS.iter().find(|number| number.member == path);
        let number = number.and_then(|number| number.said(self));
        let flag = FLAGS.iter().find(|flag| flag.member == path);
        let flag = flag.filter(|flag| self.flags.contains_key(flag.variable));
        number
            .map(|(variable, _)| variable)
            .or_else(|| flag.map(|flag| flag.variable))
    }
}

/// Whether these read a variable of this name.
pub(super) fn reads(name: &str) -> bool {
    number_variable(name).is_some() || FLAGS.iter().any(|flag| flag.variable == name)
}

fn number_variable(name: &str) -> Option<&'static str> {
    let mut variables = NUMBERS.iter().flat_map(|number| number.variables);
    variables.find(|variable| **variable == name).copied()
}

impl NamedNumber {
    /// What acts: as written, else as the environment says, else what is built in.
    pub(in crate::settings) fn acting(&self, written: Option<u64>, environment: &Named) -> u64 {
        written
            .or_else(|| self.said(environment).map(|(_, number)| number))
            .unwrap_or(self.built_in)
    }

    /// The same where the environment has been asked already.
    pub(in crate::settings) fn or_built_in(&self, filled_in: Option<u64>) -> u64 {
        filled_in.unwrap_or(self.built_in)
    }

    /// The variable that counts and its number. A 0 that has no meaning here counts as unset.
    fn said(&self, environment: &Named) -> Option<(&'static str, u64)> {
        self.variables.iter().find_map(|variable| {
            let number = *environment.numbers.get(variable)?;
            let clamped = self.bounds.clamp(i128::from(number));
            (number > 0 || clamped == 0).then_some((*variable, clamped))
        })
    }
}

impl NamedFlag {
    /// What acts: as written, else as the environment says, else off.
    pub(in crate::settings) fn acting(&self, written: Option<bool>, environment: &Named) -> bool {
        written
            .or_else(|| environment.flags.get(self.variable).copied())
            .unwrap_or(false)
    }
}
