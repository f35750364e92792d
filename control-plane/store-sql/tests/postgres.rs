//! The Postgres adapter: the suite that every adapter passes, and what only this one does.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails, also in what several tests share"
)]

#[path = "postgres/faults.rs"]
mod faults;
#[path = "postgres/leadership.rs"]
mod leadership;
#[path = "postgres/lease_delays.rs"]
mod lease_delays;
#[path = "postgres/lease_foresight.rs"]
mod lease_foresight;
#[path = "postgres/lease_races.rs"]
mod lease_races;
#[path = "postgres/leases.rs"]
mod leases;
#[path = "postgres/schema.rs"]
mod schema;
#[path = "postgres/usage.rs"]
mod usage;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_store::durable::DurableStore;
use tidegate_store::durable::conformance::{CaseError, CaseResult, Damage, Fixture, UsageRow};
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::Postgres;

/// The first database a [`Postgres`] makes.
const DATABASE: &str = "test_1";

struct OnPostgres {
    store: Arc<PgDurableStore>,
    url: String,
    postgres: Postgres,
}

/// What is right must be right also on a busy machine, so only the tests of limits have short ones.
fn patient() -> SqlLimits {
    SqlLimits {
        call: Duration::from_secs(10),
        whole: Duration::from_secs(20),
        ..SqlLimits::default()
    }
}

async fn on_postgres() -> OnPostgres {
    on_postgres_with(patient()).await
}

async fn on_postgres_with(limits: SqlLimits) -> OnPostgres {
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database().await.unwrap();
    OnPostgres {
        store: Arc::new(PgDurableStore::open(&url, limits).await.unwrap()),
        url,
        postgres,
    }
}

impl OnPostgres {
    async fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.postgres.execute(DATABASE, sql).await.unwrap()
    }

    async fn another_with(&self, limits: SqlLimits) -> PgDurableStore {
        PgDurableStore::open(&self.url, limits).await.unwrap()
    }
}

#[async_trait]
impl Fixture for OnPostgres {
    fn store(&self) -> Arc<dyn DurableStore> {
        Arc::clone(&self.store) as _
    }

    async fn another(&self) -> Result<Arc<dyn DurableStore>, CaseError> {
        Ok(Arc::new(PgDurableStore::open(&self.url, patient()).await?))
    }

    async fn damage(&self, damage: Damage) -> CaseResult {
        self.sql(match damage {
            Damage::Document => r#"UPDATE configuration SET document = '{"providers": 7}'"#,
            Damage::DocumentRow => "DELETE FROM configuration",
            Damage::Transitions => "UPDATE transitions SET body = '[1, 2]'",
            Damage::CheckpointSchemas => "UPDATE hot_checkpoint SET schema = -1",
            Damage::CredentialNames => "UPDATE credentials SET connection = 'not a name'",
        })
        .await;
        Ok(())
    }

    async fn usage(&self) -> Result<Vec<UsageRow>, CaseError> {
        let sql = format!(
            "SELECT {} FROM usage ORDER BY plane, number",
            UsageRow::COLUMNS
        );
        let number = |text: &str| text.parse::<i64>().map(i64::cast_unsigned);
        let mut read = Vec::new();
        for row in self.sql(&sql).await {
            let [plane, id, at, input, output, source] = <[_; 6]>::try_from(row).unwrap();
            let needed = |text: Option<String>| number(&text.unwrap());
            let optional = |text: Option<String>| text.map(|text| number(&text)).transpose();
            read.push(UsageRow {
                plane: needed(plane)?,
                number: needed(id)?,
                at: needed(at)?,
                input: optional(input)?,
                output: optional(output)?,
                source,
            });
        }
        Ok(read)
    }

    async fn under_way(&self) -> Result<(u64, u64), CaseError> {
        let sql = "SELECT (SELECT count(*) FROM open_attempts),
                          (SELECT count(*) FROM open_attempt_planes)";
        let mut counts = Vec::new();
        for value in self.sql(sql).await.concat() {
            counts.push(value.unwrap().parse()?);
        }
        Ok((counts[0], counts[1]))
    }
}

tidegate_store::durable_conformance!(on_postgres);
