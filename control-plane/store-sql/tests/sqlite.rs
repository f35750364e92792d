//! The SQLite adapter: the suite that every adapter passes, and what only this one does.
#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, also in what several tests share"
)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, SqliteConnection};
use tempfile::TempDir;
use tidegate_core::config::Document;
use tidegate_store::durable::conformance::{CaseError, CaseResult, Damage, Fixture, UsageRow};
use tidegate_store::durable::{
    ConfigurationStore as _, DurableStore, DurableStoreError, Leadership as _, SealedSecrets,
};
use tidegate_store_sql::{SqlLimits, SqliteDurableStore};

struct OnSqlite {
    store: Arc<SqliteDurableStore>,
    path: PathBuf,
    _dir: TempDir,
}

async fn on_sqlite() -> OnSqlite {
    let (dir, path) = place();
    OnSqlite {
        store: Arc::new(open(&path).await.unwrap()),
        path,
        _dir: dir,
    }
}

#[async_trait]
impl Fixture for OnSqlite {
    fn store(&self) -> Arc<dyn DurableStore> {
        Arc::clone(&self.store) as _
    }

    async fn another(&self) -> Result<Arc<dyn DurableStore>, CaseError> {
        Ok(self.store())
    }

    async fn damage(&self, damage: Damage) -> CaseResult {
        let sql = match damage {
            Damage::Document => r#"UPDATE configuration SET document = '{"providers": 7}'"#,
            Damage::DocumentRow => "DELETE FROM configuration",
            Damage::Transitions => "UPDATE transitions SET body = '[not even JSON'",
            Damage::CheckpointSchemas => "UPDATE hot_checkpoint SET schema = -1",
            Damage::CredentialNames => "UPDATE credentials SET connection = 'not a name'",
        };
        foreign(&self.path).await.execute(sql).await?;
        Ok(())
    }

    async fn usage(&self) -> Result<Vec<UsageRow>, CaseError> {
        let sql = format!(
            "SELECT {} FROM usage ORDER BY plane, number",
            UsageRow::COLUMNS
        );
        type Row = (i64, i64, i64, Option<i64>, Option<i64>, Option<String>);
        let rows: Vec<Row> = sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .fetch_all(&mut foreign(&self.path).await)
            .await?;
        let rows = rows
            .into_iter()
            .map(|(plane, number, at, input, output, source)| UsageRow {
                plane: plane.cast_unsigned(),
                number: number.cast_unsigned(),
                at: at.cast_unsigned(),
                input: input.map(i64::cast_unsigned),
                output: output.map(i64::cast_unsigned),
                source,
            });
        Ok(rows.collect())
    }

    async fn under_way(&self) -> Result<(u64, u64), CaseError> {
        let sql = "SELECT (SELECT count(*) FROM open_attempts),
                          (SELECT count(*) FROM open_attempt_planes)";
        let (attempts, planes): (i64, i64) = sqlx::query_as(sql)
            .fetch_one(&mut foreign(&self.path).await)
            .await?;
        Ok((attempts.cast_unsigned(), planes.cast_unsigned()))
    }
}

tidegate_store::durable_conformance!(on_sqlite);

fn place() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tidegate.db");
    (dir, path)
}

async fn open(path: &Path) -> Result<SqliteDurableStore, DurableStoreError> {
    // What is right must be right also on a busy machine, so only the test of limits has short ones.
    let limits = SqlLimits {
        call: Duration::from_secs(10),
        whole: Duration::from_secs(20),
        ..SqlLimits::default()
    };
    SqliteDurableStore::open(path, limits).await
}

/// A connection as a foreign tool has it.
async fn foreign(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(path)
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn a_second_opening_of_the_file_is_refused_until_the_first_is_gone() {
    let (_dir, path) = place();
    let first = open(&path).await.unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(matches!(error, DurableStoreError::Refused(_)), "{error}");
    assert!(error.to_string().contains("another process"), "{error}");
    first.ping().await.unwrap();
    assert!(first.try_lead("checkpoint").await.unwrap());
    first.close().await;
    drop(first);
    open(&path).await.unwrap();
}

#[tokio::test]
async fn of_several_openings_at_once_one_wins_and_the_schema_is_whole() {
    let (_dir, path) = place();
    let (one, two, three, four) = tokio::join!(open(&path), open(&path), open(&path), open(&path));
    let (won, refused): (Vec<_>, Vec<_>) =
        [one, two, three, four].into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), refused.len()), (1, 3));
    for store in won {
        assert_eq!(store.unwrap().stored_version().await.unwrap().document, 0);
    }
}

#[tokio::test]
async fn what_was_saved_is_there_after_opening_again() {
    let (_dir, path) = place();
    for version in 0..3 {
        let store = open(&path).await.unwrap();
        let document = Document::default();
        let saved = store
            .save_document(version, &document, &SealedSecrets::default(), "ops", "")
            .await
            .unwrap();
        assert_eq!(saved, version + 1);
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let (_dir, path) = place();
    drop(open(&path).await.unwrap());
    foreign(&path)
        .await
        .execute(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (9999, 'of the future', true, x'00', 0)",
        )
        .await
        .unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(matches!(error, DurableStoreError::Schema(_)), "{error}");
    assert!(error.to_string().contains("9999"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_corrupt_and_stays_as_it_is() {
    let (_dir, path) = place();
    let text = "this is not a database, it is a text of more than a hundred bytes, \
                as long as the header of a database would be, and then some";
    std::fs::write(&path, text).unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(matches!(error, DurableStoreError::Corrupt(_)), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_named() {
    let (dir, _) = place();
    let path = dir.path().join("missing").join("tidegate.db");
    let error = open(&path).await.unwrap_err();
    assert!(
        matches!(error, DurableStoreError::Unreachable(_)),
        "{error}"
    );
    assert!(error.to_string().contains("missing"), "{error}");
}

#[tokio::test]
async fn only_the_owner_may_read_the_files() {
    let (dir, path) = place();
    let store = open(&path).await.unwrap();
    store
        .save_document(
            0,
            &Document::default(),
            &SealedSecrets::default(),
            "ops",
            "",
        )
        .await
        .unwrap();
    let mut names = 0;
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?}", file.file_name());
        names += 1;
    }
    // Database, lock, journal and its index.
    assert_eq!(names, 4);
}

#[tokio::test]
async fn a_foreign_writer_is_waited_for_within_the_limit_and_readers_go_on() {
    let (_dir, path) = place();
    // It waits for half of it; whatever else takes time has the other half.
    let limits = SqlLimits {
        call: Duration::from_secs(4),
        ..SqlLimits::default()
    };
    let store = SqliteDurableStore::open(&path, limits).await.unwrap();
    let mut other = foreign(&path).await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let document = Document::default();
    let error = store
        .save_document(0, &document, &SealedSecrets::default(), "ops", "")
        .await
        .unwrap_err();
    assert!(matches!(error, DurableStoreError::Contended(_)), "{error}");
    assert!(error.is_certainly_not_applied());
    store.ping().await.unwrap();
    assert_eq!(store.stored_version().await.unwrap().document, 0);
    other.execute("ROLLBACK").await.unwrap();
    other.close().await.unwrap();
    store
        .save_document(0, &document, &SealedSecrets::default(), "ops", "")
        .await
        .unwrap();
}
