//! One leader at a time, by advisory locks of a session.
//!
//! All claims of a process hang on one connection that serves nothing else. The server frees them when that
//! session ends, however it ends: closed by us, terminated, lost with its host (keep-alive), or silent for
//! too long (`idle_session_timeout`: the leader was stopped and does not know). Each [`Leadership::try_lead`]
//! asks on that connection, so a leader learns of the loss the next time it confirms.
//!
//! While a call runs the connection is taken out. If the call is given up or fails, the connection is dropped
//! with everything claimed on it: an unclear claim is no claim.

use std::collections::BTreeSet;

use async_trait::async_trait;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};
use tidegate_store::durable::{DurableStoreError, Leadership};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::{PgDurableStore, session};
use crate::call::{Failure, Progress};
use crate::limits::SqlLimits;

/// First half of our advisory locks' keys: "tide".
const NAMESPACE: i32 = 0x7469_6465;

/// The claims of this process.
#[derive(Debug)]
pub(super) struct Claims {
    options: PgConnectOptions,
    limits: SqlLimits,
    held: Mutex<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    connection: PgConnection,
    tasks: BTreeSet<&'static str>,
}

impl Claims {
    pub(super) fn new(base: PgConnectOptions, limits: SqlLimits) -> Self {
        let silence = limits.leader_silence.as_millis().max(1).to_string();
        let options = session(base, limits.call, "tidegate-leader").options([
            ("idle_session_timeout", silence.as_str()),
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "2"),
            ("tcp_keepalives_count", "3"),
        ]);
        Self {
            options,
            limits,
            held: Mutex::new(None),
        }
    }

    /// Gives everything back by ending the session.
    pub(super) async fn drop_all(&self) {
        let held = self.held.lock().await.take();
        if let Some(held) = held {
            // Dropping the connection ends the session as well, only less politely.
            drop(timeout(self.limits.call, held.connection.close()).await);
        }
    }

    async fn connection(&self, held: Option<Held>) -> Result<Held, sqlx::Error> {
        if let Some(mut held) = held {
            match held.connection.execute("SELECT 1").await {
                Ok(_) => return Ok(held),
                Err(error) => tracing::warn!(
                    error = %crate::sqlstate::text(&error),
                    tasks = ?held.tasks,
                    "leader connection lost, claims are void"
                ),
            }
        }
        Ok(Held {
            connection: self.options.connect().await?,
            tasks: BTreeSet::new(),
        })
    }

    async fn try_lead(&self, task: &'static str) -> Result<bool, Failure> {
        let mut slot = self.held.lock().await;
        let mut held = self.connection(slot.take()).await?;
        // A session may hold the same lock several times, so it is asked for once.
        let leads = held.tasks.contains(task)
            || sqlx::query_scalar::<_, bool>("SELECT pg_try_advisory_lock($1, $2)")
                .bind(NAMESPACE)
                .bind(key(task))
                .fetch_one(&mut held.connection)
                .await?;
        if leads {
            held.tasks.insert(task);
        }
        *slot = Some(held);
        Ok(leads)
    }

    async fn resign(&self, task: &'static str) -> Result<(), Failure> {
        let mut slot = self.held.lock().await;
        if !slot.as_ref().is_some_and(|held| held.tasks.contains(task)) {
            return Ok(());
        }
        let Some(mut held) = slot.take() else {
            return Ok(());
        };
        held.tasks.remove(task);
        sqlx::query("SELECT pg_advisory_unlock($1, $2)")
            .bind(NAMESPACE)
            .bind(key(task))
            .execute(&mut held.connection)
            .await?;
        *slot = Some(held);
        Ok(())
    }
}

/// Second half of a task's key: FNV-1a, 32 bit. Part of the contract between replicas of different releases.
fn key(task: &str) -> i32 {
    let mut hash: u32 = 0x811c_9dc5;
    for byte in task.bytes() {
        hash ^= u32::from(byte);
        hash = hash.wrapping_mul(0x0100_0193);
    }
    hash.cast_signed()
}

#[async_trait]
impl Leadership for PgDurableStore {
    async fn try_lead(&self, task: &'static str) -> Result<bool, DurableStoreError> {
        let progress = Progress::default();
        match timeout(self.limits.call, self.claims.try_lead(task)).await {
            Ok(outcome) => outcome.map_err(|failure| failure.judge(&progress)),
            Err(_) => Err(progress.late(self.limits.call)),
        }
    }

    async fn resign(&self, task: &'static str) -> Result<(), DurableStoreError> {
        let progress = Progress::default();
        progress.decides();
        match timeout(self.limits.call, self.claims.resign(task)).await {
            Ok(outcome) => outcome.map_err(|failure| failure.judge(&progress)),
            Err(_) => Err(progress.late(self.limits.call)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::key;

    #[test]
    fn the_key_of_a_task_is_the_same_in_every_release() {
        assert_eq!(key("checkpoint"), key("checkpoint"));
        assert_eq!(key("a"), 0xe40c_292c_u32.cast_signed());
    }
}
