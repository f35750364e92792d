//! The durable store in one SQLite file, for a single process.
//!
//! **Stance:** as the port says. **One process:** a lock on a file beside the database refuses a second one with
//! a clear error, since claims of leadership are kept in the process. **One writer:** all writes go through
//! one connection, so they queue here, within the call's limit, instead of meeting `SQLITE_BUSY`; readers
//! have their own and, the journal being a WAL, never wait for it.
//!
//! **What a commit means.** Configuration, history and usage are committed with `synchronous=FULL`: once
//! answered, they survive a loss of power. The checkpoint is written with `NORMAL`: it survives the death of
//! the process, and of the machine up to the last sync of the journal, and the file is never damaged. It is
//! written ten times a second and holds what the fleet would learn again; a sync each time would wear a disk for
//! nothing. Each write sets its own mode, since it belongs to the connection.

mod checkpoint;
mod configuration;
mod events;
mod handoffs;
mod history;
mod leadership;
mod leases;
mod lock;
mod pins;
mod tokens;
mod usage;

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Executor, Sqlite, SqliteConnection, Transaction};
use tidegate_store::durable::{DurableStore, DurableStoreError};

use crate::call::{Progress, run};
use crate::limits::SqlLimits;
use crate::schema;
use lock::FileLock;

/// The durable store in a SQLite file.
#[derive(Debug)]
pub struct SqliteDurableStore {
    // Dropped in this order: connections before the lock.
    readers: SqlitePool,
    writer: SqlitePool,
    limits: SqlLimits,
    _lock: FileLock,
}

impl SqliteDurableStore {
    /// Opens the file, makes it if need be (not its directory), and brings its schema up to date.
    ///
    /// # Errors
    /// [`DurableStoreError::Refused`] when another process has it open,
    /// [`DurableStoreError::Schema`] when its schema is newer than this build,
    /// [`DurableStoreError::Unreachable`] when it cannot be opened,
    /// [`DurableStoreError::Corrupt`] when it is no database.
    pub async fn open(path: &Path, limits: SqlLimits) -> Result<Self, DurableStoreError> {
        let lock = FileLock::take(path)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            // Only a foreign tool can be in the way. It gets half of the limit, so that we can still answer.
            .busy_timeout(limits.call / 2)
            .disable_statement_logging();
        let writer = pool(1, limits.call).connect_lazy_with(options.clone());
        let readers =
            pool(limits.connections.max(1), limits.call).connect_lazy_with(options.read_only(true));
        run::<Sqlite, _, _>(
            &writer,
            limits.migration,
            async |connection: &mut SqliteConnection, _: &Progress| {
                Ok(schema::migrate(&schema::SQLITE, connection).await?)
            },
        )
        .await?;
        Ok(Self {
            readers,
            writer,
            limits,
            _lock: lock,
        })
    }

    /// Ends all connections, which writes the journal back into the file.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

fn pool(connections: u32, limit: Duration) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(limit)
        // There is no server that would forget them, and nothing to test.
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
}

/// What a commit is to survive.
#[derive(Clone, Copy, Debug)]
enum Survives {
    /// A loss of power.
    PowerLoss,
    /// The death of the process.
    Death,
}

/// Begins a transaction that writes.
async fn begin(
    connection: &mut SqliteConnection,
    survives: Survives,
) -> Result<Transaction<'_, Sqlite>, sqlx::Error> {
    let pragma = match survives {
        Survives::PowerLoss => "PRAGMA synchronous = FULL",
        Survives::Death => "PRAGMA synchronous = NORMAL",
    };
    connection.execute(pragma).await?;
    // A deferred one could fail when it turns from reading to writing.
    connection.begin_with("BEGIN IMMEDIATE").await
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[async_trait]
impl DurableStore for SqliteDurableStore {
    async fn ping(&self) -> Result<(), DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |connection: &mut SqliteConnection, _: &Progress| {
                connection
                    .execute("SELECT version FROM configuration")
                    .await?;
                Ok(())
            },
        )
        .await
    }
}
