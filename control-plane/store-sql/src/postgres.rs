//! The durable store in Postgres, for fleets.
//!
//! **Stance:** as the port says. **Limits:** ours ([`SqlLimits`]) around every call, the server's
//! `statement_timeout` inside it, so that what we gave up does not go on for long, and
//! `idle_in_transaction_session_timeout`, so that a stopped replica holds no row. **Repair:** the pool opens
//! connections anew; claims of a leader whose connection is lost pass to another (`leadership`).
//!
//! Advisory locks and limits belong to sessions, so a pooler between us and the server must be in session mode.

mod checkpoint;
mod configuration;
mod events;
mod handoffs;
mod history;
mod leadership;
mod leases;
mod pins;
mod tokens;
mod usage;

use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Executor, PgConnection, Postgres};
use tidegate_store::durable::{DurableStore, DurableStoreError};
use tokio::time::timeout;

use crate::call::{Failure, Progress, run};
use crate::limits::SqlLimits;
use crate::schema;
use leadership::Claims;

/// How long an idle connection of the pool is kept.
const IDLE: Duration = Duration::from_secs(300);

/// How long a connection of the pool lies idle before it is tested again. The pool tests each one when it comes back, and a
/// server is not gone and back within this time, so to test sooner would only be one more round trip for every call.
const TESTED: Duration = Duration::from_millis(100);

/// The durable store in Postgres.
#[derive(Debug)]
pub struct PgDurableStore {
    pool: PgPool,
    limits: SqlLimits,
    claims: Claims,
    recent: leases::Recent,
}

impl PgDurableStore {
    /// Opens the database `url` names, and brings its schema up to date first.
    ///
    /// # Errors
    /// [`DurableStoreError::Schema`] when the schema is newer than this build,
    /// [`DurableStoreError::Unreachable`] when the database does not answer in time,
    /// [`DurableStoreError::Refused`] for a URL or credentials that are not taken.
    pub async fn open(url: &str, limits: SqlLimits) -> Result<Self, DurableStoreError> {
        Self::migrate(url, limits).await?;
        Self::connect(url, limits)
    }

    /// Opens it and refuses a schema that is not exactly the one of this build: for installations where
    /// only a job with other rights migrates.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_migrated(url: &str, limits: SqlLimits) -> Result<Self, DurableStoreError> {
        let store = Self::connect(url, limits)?;
        run::<Postgres, _, _>(
            &store.pool,
            limits.call,
            async |connection: &mut PgConnection, _: &Progress| {
                Ok(schema::verify(&schema::POSTGRES, connection).await?)
            },
        )
        .await?;
        Ok(store)
    }

    /// Brings the schema up to date. Safe to run several times at once: an advisory lock makes the others
    /// wait, and what is done is not done again.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn migrate(url: &str, limits: SqlLimits) -> Result<(), DurableStoreError> {
        let options = session(parse(url)?, limits.migration, "tidegate-migrate");
        let progress = Progress::default();
        let attempt = async {
            // A connection of its own, which ends with this call: if it fails half way the lock goes with it.
            let mut connection = options.connect().await?;
            schema::migrate(&schema::POSTGRES, &mut connection).await?;
            connection.close().await?;
            Ok::<(), Failure>(())
        };
        match timeout(limits.migration, attempt).await {
            Ok(outcome) => outcome.map_err(|failure| failure.judge(&progress)),
            Err(_) => Err(progress.late(limits.migration)),
        }
    }

    /// Ends all connections, and with them all claims.
    pub async fn close(&self) {
        self.claims.drop_all().await;
        self.pool.close().await;
    }

    fn connect(url: &str, limits: SqlLimits) -> Result<Self, DurableStoreError> {
        let base = parse(url)?;
        let pool = PgPoolOptions::new()
            .max_connections(limits.connections.max(1))
            .acquire_timeout(limits.call)
            .idle_timeout(IDLE)
            .test_before_acquire(false)
            .before_acquire(|connection, idle| {
                Box::pin(async move {
                    if idle.idle_for >= TESTED {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(session(base.clone(), limits.call, "tidegate"));
        Ok(Self {
            pool,
            limits,
            claims: Claims::new(base, limits),
            recent: leases::Recent::default(),
        })
    }
}

fn parse(url: &str) -> Result<PgConnectOptions, DurableStoreError> {
    // The driver takes any scheme. Neither its error nor ours repeats the URL, which may hold a password.
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err(DurableStoreError::Refused(
            "the URL of the database does not begin with postgres://".to_owned(),
        ));
    }
    PgConnectOptions::from_str(url)
        .map(|options| options.disable_statement_logging())
        .map_err(|_| DurableStoreError::Refused("the URL of the database is not valid".to_owned()))
}

/// Options of a session whose statements end by themselves after `limit`.
fn session(base: PgConnectOptions, limit: Duration, name: &str) -> PgConnectOptions {
    // 0 would mean no limit.
    let limit = limit.as_millis().max(1).to_string();
    base.application_name(name).options([
        ("statement_timeout", limit.as_str()),
        ("idle_in_transaction_session_timeout", limit.as_str()),
        // What one statement sees after another is relied upon (`open_lease_v1`), whatever the database has as default.
        ("default_transaction_isolation", "read committed"),
    ])
}

/// Raises the server's limit for the rest of the transaction.
async fn allow(connection: &mut PgConnection, limit: Duration) -> Result<(), sqlx::Error> {
    let limit = limit.as_millis().max(1).to_string();
    sqlx::query(
        "SELECT set_config('statement_timeout', $1, true),
                set_config('idle_in_transaction_session_timeout', $1, true)",
    )
    .bind(limit)
    .execute(connection)
    .await
    .map(drop)
}

/// A transaction whose statements all see the same state.
const BEGIN_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

#[async_trait]
impl DurableStore for PgDurableStore {
    async fn ping(&self) -> Result<(), DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, _: &Progress| {
                connection.execute("SELECT 1").await?;
                Ok(())
            },
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{parse, session};

    #[test]
    fn sessions_do_not_depend_on_defaults_of_the_database() {
        let options = session(parse("postgres://host/db").unwrap(), Duration::ZERO, "test");
        let options = options.get_options().unwrap();
        for expected in [
            r"-c statement_timeout=1",
            r"-c default_transaction_isolation=read\ committed",
        ] {
            assert!(options.contains(expected), "{options}");
        }
    }

    #[test]
    fn an_invalid_url_is_refused_without_being_repeated() {
        for url in [
            "postgres://me:hunter2@host:port/db",
            "mysql://me:hunter2@host/db",
        ] {
            let error = parse(url).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
