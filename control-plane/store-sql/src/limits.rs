//! How long calls may take and how many connections there may be.

use std::time::Duration;

use crate::rows::BATCH_ROWS;

/// Bounds of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqlLimits {
    /// A call, with everything in it: waiting for a connection, opening one, statements, commit. Also the
    /// server's own limit of one statement (decision 54). A checkpoint has it once for every 1,000 entries.
    pub call: Duration,
    /// A call that moves something whole: the document, the checkpoint of a shard.
    pub whole: Duration,
    /// All migrations, with waiting for another process that migrates.
    pub migration: Duration,
    /// Connections of the pool; for SQLite, connections that read. One more is for leadership, or for
    /// writing.
    pub connections: u32,
    /// Silence after which Postgres takes a leader's claims away; SQLite has no use for it.
    pub leader_silence: Duration,
}

impl Default for SqlLimits {
    fn default() -> Self {
        Self {
            call: Duration::from_millis(500),
            whole: Duration::from_secs(5),
            migration: Duration::from_secs(60),
            connections: 8,
            leader_silence: Duration::from_secs(10),
        }
    }
}

impl SqlLimits {
    /// The limit of a call that writes so many rows.
    pub(crate) fn of_rows(&self, rows: usize) -> Duration {
        let batches = rows.div_ceil(BATCH_ROWS).max(1);
        self.call
            .saturating_mul(u32::try_from(batches).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::SqlLimits;

    #[test]
    fn a_call_has_its_limit_once_for_every_batch() {
        let limits = SqlLimits::default();
        assert_eq!(limits.of_rows(0), limits.call);
        assert_eq!(limits.of_rows(1_000), limits.call);
        assert_eq!(limits.of_rows(1_001), limits.call * 2);
    }
}
