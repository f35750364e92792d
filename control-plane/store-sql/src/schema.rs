//! Migrations: embedded, run under a lock, refused by a binary that is too old.
//!
//! A migration keeps the previous release working while it runs beside the new one (`docs/operations/durable-store.md`):
//! it adds, and what it replaces is taken away one release later.

use sqlx::migrate::{Migrate, MigrateError, Migrator};
use tidegate_store::durable::DurableStoreError;

use crate::call::{Failure, Progress};

/// Migrations of the Postgres schema.
pub(crate) static POSTGRES: Migrator = sqlx::migrate!("./migrations/postgres");
/// Migrations of the SQLite schema.
pub(crate) static SQLITE: Migrator = sqlx::migrate!("./migrations/sqlite");

/// The schema that this build makes and expects.
#[must_use]
pub fn newest_schema() -> i64 {
    newest(&POSTGRES)
}

fn newest(migrator: &Migrator) -> i64 {
    migrator
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or(0)
}

/// Brings the schema up to date. Whoever comes second waits for the first (Postgres) and finds nothing to do.
///
/// After an error the connection must be closed, since it may hold the lock.
pub(crate) async fn migrate<C: Migrate>(
    migrator: &Migrator,
    connection: &mut C,
) -> Result<(), DurableStoreError> {
    migrator
        .run_direct(None, connection, false)
        .await
        .map_err(|error| judge(migrator, error))
}

/// Only looks whether the schema is the one this build expects.
pub(crate) async fn verify<C: Migrate>(
    migrator: &Migrator,
    connection: &mut C,
) -> Result<(), DurableStoreError> {
    let applied = connection
        .list_applied_migrations(&migrator.table_name)
        .await
        .map_err(|error| judge(migrator, error))?;
    for found in &applied {
        match migrator.iter().find(|known| known.version == found.version) {
            None => return Err(judge(migrator, MigrateError::VersionMissing(found.version))),
            Some(known) if known.checksum != found.checksum => {
                return Err(judge(
                    migrator,
                    MigrateError::VersionMismatch(found.version),
                ));
            }
            Some(_) => {}
        }
    }
    let missing = migrator
        .iter()
        .find(|known| applied.iter().all(|found| found.version != known.version));
    match missing {
        None => Ok(()),
        Some(missing) => Err(DurableStoreError::Schema(format!(
            "migration {} was not run; run `migrate` first",
            missing.version
        ))),
    }
}

fn judge(migrator: &Migrator, error: MigrateError) -> DurableStoreError {
    match error {
        MigrateError::Execute(error) => Failure::Sql(error).judge(&Progress::default()),
        MigrateError::ExecuteMigration(error, version) => {
            match Failure::Sql(error).judge(&Progress::default()) {
                error @ (DurableStoreError::Unreachable(_) | DurableStoreError::Contended(_)) => {
                    error
                }
                error => DurableStoreError::Schema(format!("migration {version} failed: {error}")),
            }
        }
        MigrateError::VersionMissing(found) => DurableStoreError::Schema(format!(
            "the database has migration {found}, this build knows up to {}; use the newer build",
            newest(migrator)
        )),
        MigrateError::VersionMismatch(version) => DurableStoreError::Schema(format!(
            "migration {version} of the database is not the one of this build"
        )),
        error => DurableStoreError::Schema(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::{POSTGRES, SQLITE};

    #[test]
    fn both_databases_have_the_same_migrations() {
        let versions =
            |migrator: &sqlx::migrate::Migrator| migrator.iter().map(|m| m.version).collect();
        let (postgres, sqlite): (Vec<i64>, Vec<i64>) = (versions(&POSTGRES), versions(&SQLITE));
        assert_eq!(postgres, sqlite);
    }
}
