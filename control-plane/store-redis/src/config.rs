//! Where the servers are, and how long to wait for them.

use std::fmt;
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo as _};

/// Limits of what the adapter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisLimits {
    /// A call, until its answer (decision 54). A caller with less time gives up earlier by itself.
    pub call: Duration,
    /// The reading of a whole shard.
    pub read: Duration,
    /// Making a connection, from the first packet until it can be used.
    pub connect: Duration,
    /// One blocking read of the change streams; an empty answer after it shows that the server is alive.
    pub block: Duration,
    /// The shortest pause after a failed connection; it doubles with each further failure.
    pub pause_min: Duration,
    /// The longest pause after a failed connection.
    pub pause_max: Duration,
    /// So many calls in a row without an answer, and the connection is replaced: its peer may be gone for good.
    pub silent_calls: u32,
}

impl Default for RedisLimits {
    fn default() -> Self {
        Self {
            call: Duration::from_millis(50),
            read: Duration::from_millis(500),
            connect: Duration::from_secs(1),
            block: Duration::from_secs(1),
            pause_min: Duration::from_millis(10),
            pause_max: Duration::from_millis(500),
            silent_calls: 5,
        }
    }
}

/// How the servers are organised.
#[derive(Clone, PartialEq, Eq)]
pub enum RedisMode {
    /// One server, the first of the URLs.
    Single,
    /// Sentinels at the URLs name the server.
    Sentinel {
        /// The name under which they watch it.
        service: String,
        /// A URL whose scheme (`rediss` for TLS), user, password and database are used for the server; its host
        /// is not used. Without it the server is plain and without a password.
        node_url: Option<String>,
    },
    /// A cluster; the URLs are some of its nodes.
    Cluster,
}

/// Where the servers are.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    /// How they are organised.
    pub mode: RedisMode,
    /// Their URLs (`redis://` or `rediss://`). They may hold passwords and are never shown whole.
    pub urls: Vec<String>,
    /// How long to wait for them.
    pub limits: RedisLimits,
    /// Changes kept per shard for followers that were away (approximately; the server trims in steps).
    pub stream_entries: usize,
}

impl RedisConfig {
    /// One server with the usual limits.
    #[must_use]
    pub fn single(url: impl Into<String>) -> Self {
        Self {
            mode: RedisMode::Single,
            urls: vec![url.into()],
            limits: RedisLimits::default(),
            stream_entries: 4_096,
        }
    }
}

/// Why a [`RedisConfig`] cannot be used. Holds no part of a URL.
#[derive(Debug, thiserror::Error)]
pub enum RedisConfigError {
    /// There is no URL.
    #[error("no redis url is configured")]
    NoUrl,
    /// A URL cannot be parsed.
    #[error("redis url number {0} is not valid")]
    Url(usize),
    /// The URL of the servers behind the sentinels cannot be parsed.
    #[error("the redis node url is not valid")]
    NodeUrl,
    /// A limit that must not be zero is.
    #[error("the redis limit {0} is zero")]
    ZeroLimit(&'static str),
    /// The servers cannot be used together as configured.
    #[error("the redis servers cannot be used as configured: {0}")]
    Servers(redis::RedisError),
}

impl RedisConfig {
    /// Checks the configuration; returns the parsed URLs.
    pub(crate) fn parse(&self) -> Result<Vec<ConnectionInfo>, RedisConfigError> {
        for (name, limit) in [
            ("call", self.limits.call),
            ("read", self.limits.read),
            ("connect", self.limits.connect),
            ("block", self.limits.block),
            ("pause_min", self.limits.pause_min),
            ("pause_max", self.limits.pause_max),
        ] {
            // Redis takes the blocking time in whole ms, and 0 would block for ever.
            if limit.as_millis() == 0 {
                return Err(RedisConfigError::ZeroLimit(name));
            }
        }
        if self.stream_entries == 0 {
            return Err(RedisConfigError::ZeroLimit("stream_entries"));
        }
        if self.urls.is_empty() {
            return Err(RedisConfigError::NoUrl);
        }
        self.urls
            .iter()
            .enumerate()
            .map(|(number, url)| {
                url.as_str()
                    .into_connection_info()
                    .map_err(|_| RedisConfigError::Url(number))
            })
            .collect()
    }
}

impl fmt::Debug for RedisMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => formatter.write_str("Single"),
            Self::Sentinel { service, .. } => formatter
                .debug_struct("Sentinel")
                .field("service", service)
                .finish_non_exhaustive(),
            Self::Cluster => formatter.write_str("Cluster"),
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self
            .urls
            .iter()
            .map(|url| match url.as_str().into_connection_info() {
                Ok(info) => info.addr().to_string(),
                Err(_) => "(not valid)".to_owned(),
            })
            .collect();
        formatter
            .debug_struct("RedisConfig")
            .field("mode", &self.mode)
            .field("servers", &servers)
            .field("limits", &self.limits)
            .field("stream_entries", &self.stream_entries)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let mut config = RedisConfig::single("redis://user:hunter2@127.0.0.1:6379/0");
        config.mode = RedisMode::Sentinel {
            service: "hot".to_owned(),
            node_url: Some("redis://:hunter2@x/".to_owned()),
        };
        let shown = format!("{config:?}");
        assert!(shown.contains("127.0.0.1:6379"), "{shown}");
        assert!(
            !shown.contains("hunter2") && !shown.contains("user"),
            "{shown}"
        );
        config.urls.push("not a url with hunter2".to_owned());
        let error = config.parse().unwrap_err();
        assert!(matches!(error, RedisConfigError::Url(1)));
        assert!(!format!("{error} {error:?} {config:?}").contains("hunter2"));
    }

    #[test]
    fn a_configuration_that_would_block_for_ever_is_refused() {
        let mut config = RedisConfig::single("redis://127.0.0.1/");
        config.limits.block = Duration::from_micros(900);
        assert!(matches!(
            config.parse(),
            Err(RedisConfigError::ZeroLimit("block"))
        ));
        config = RedisConfig::single("redis://127.0.0.1/");
        config.urls.clear();
        assert!(matches!(config.parse(), Err(RedisConfigError::NoUrl)));
    }
}
