//! Tokens of attempts: counted once, whoever is told and how often, and marked as unknown where a data plane is lost.

use std::sync::Arc;

use tidegate_proto::common::v1 as common;
use tidegate_proto::report::v1 as report;
use tidegate_store_sql::PgDurableStore;
use tidegate_test_support::Postgres;
use tonic::{Code, Status};

use crate::fleet::{Fleet, Replica, document, eventually, patient};

/// The first database a [`Postgres`] makes.
const DATABASE: &str = "test_1";

async fn on_postgres<const N: usize>() -> (Postgres, Fleet, [Replica; N]) {
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database().await.unwrap();
    let store = PgDurableStore::open(&url, patient()).await.unwrap();
    let fleet = Fleet::over(Arc::new(store));
    let replicas = fleet.replicas_with(document()).await;
    (postgres, fleet, replicas)
}

fn usage(plane: u64, number: u64) -> report::Usage {
    report::Usage {
        attempt: Some(common::AttemptId { plane, number }),
        at_unix_ms: 5_000 + number,
        provider: "alpha".to_owned(),
        connection: "a1".to_owned(),
        model: "m".to_owned(),
        key_id: String::new(),
        input_tokens: Some(100),
        output_tokens: Some(7),
        source: report::UsageSource::Estimated.into(),
    }
}

fn open(number: u64) -> report::OpenAttempt {
    report::OpenAttempt {
        number,
        since_unix_ms: 1_000,
        provider: "alpha".to_owned(),
        connection: "a1".to_owned(),
        model: "m".to_owned(),
        key_id: "team".to_owned(),
    }
}

impl Replica {
    /// What was refused of it.
    async fn try_record(
        &self,
        usages: Vec<report::Usage>,
    ) -> Result<Vec<report::RefusedUsage>, Status> {
        let request = report::RecordUsageRequest { usages };
        let answer = self.reports().record_usage(request).await?;
        Ok(answer.into_inner().refused)
    }

    async fn record(&self, usages: Vec<report::Usage>) {
        let refused = self.try_record(usages).await.unwrap();
        assert!(refused.is_empty(), "{refused:?}");
    }

    async fn try_open(&self, plane: u64, opened: Vec<report::OpenAttempt>) -> Result<u64, Status> {
        let request = report::ReportOpenAttemptsRequest { plane, opened };
        let answer = self.reports().report_open_attempts(request).await?;
        Ok(answer.into_inner().again_within_ms)
    }

    fn recorded(&self, source: &str) -> u64 {
        self.counter(&format!("usage_records_total{{source=\"{source}\"}}"))
    }

    fn tokens(&self, source: &str, direction: &str) -> u64 {
        let labels = format!("source=\"{source}\",direction=\"{direction}\"");
        self.counter(&format!("usage_tokens_total{{{labels}}}"))
    }
}

/// How many rows of usage there are, by source.
async fn rows(postgres: &Postgres) -> Vec<(String, String)> {
    let sql = "SELECT source, count(*) FROM usage GROUP BY source ORDER BY source";
    let rows = postgres.execute(DATABASE, sql).await.unwrap();
    rows.into_iter()
        .map(|row| {
            let [source, count] = <[_; 2]>::try_from(row).unwrap();
            (source.unwrap(), count.unwrap())
        })
        .collect()
}

fn counts(rows: &[(&str, u64)]) -> Vec<(String, String)> {
    rows.iter()
        .map(|(source, count)| ((*source).to_owned(), count.to_string()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn vector_sessions_56_usage_delivered_twice_to_two_control_planes_counts_once() {
    let (postgres, _fleet, [one, other]) = on_postgres().await;
    let usages: Vec<_> = (1..=50).map(|number| usage(7, number)).collect();
    one.record(usages.clone()).await;
    one.record(usages.clone()).await;
    other.record(usages.clone()).await;
    // At once, each with something new.
    let new = |range: std::ops::RangeInclusive<u64>| {
        usages
            .iter()
            .cloned()
            .chain(range.map(|number| usage(8, number)))
    };
    tokio::join!(
        one.record(new(1..=20).collect()),
        other.record(new(11..=30).collect()),
        other.record(new(1..=30).collect()),
    );
    assert_eq!(rows(&postgres).await, counts(&[("estimated", 80)]));
    let sum = |of: fn(&Replica) -> u64| of(&one) + of(&other);
    assert_eq!(sum(|replica| replica.recorded("estimated")), 80);
    assert_eq!(sum(|replica| replica.tokens("estimated", "input")), 8_000);
    assert_eq!(sum(|replica| replica.tokens("estimated", "output")), 560);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_of_a_lost_data_plane_are_recorded_once_until_it_tells_more() {
    let (postgres, fleet, [one, other]) = on_postgres().await;
    one.record(vec![usage(7, 1)]).await;
    let opened: Vec<_> = (1..=20).map(open).collect();
    let again_within_ms = one.try_open(7, opened.clone()).await.unwrap();
    assert_eq!(again_within_ms, 500);
    other.try_open(7, opened).await.unwrap();
    // Whoever tells the rest is another one, and both look.
    one.shutdown().await;
    let late = fleet.start().await;
    let both = [("estimated", 1), ("unknown", 19)];
    eventually("the rest is unknown", async || {
        rows(&postgres).await == counts(&both)
    })
    .await;
    eventually("it is counted", async || {
        late.recorded("unknown") + other.recorded("unknown") == 19
    })
    .await;
    // It was only cut off.
    other.record(vec![usage(7, 1), usage(7, 2)]).await;
    late.record(vec![usage(7, 2)]).await;
    let both = [("estimated", 2), ("unknown", 18)];
    assert_eq!(rows(&postgres).await, counts(&both));
    let tokens = late.tokens("estimated", "input") + other.tokens("estimated", "input");
    assert_eq!(tokens, 100);
    let left = "SELECT count(*) FROM open_attempts";
    let left = postgres.execute(DATABASE, left).await.unwrap();
    assert_eq!(left, [[Some("0".to_owned())]]);
}

#[tokio::test]
async fn who_tells_no_source_tells_what_the_provider_told() {
    let (postgres, _fleet, [one]) = on_postgres().await;
    let before = |number| report::Usage {
        source: 0,
        ..usage(7, number)
    };
    let silent = report::Usage {
        input_tokens: None,
        output_tokens: None,
        ..before(2)
    };
    one.record(vec![before(1), silent]).await;
    let both = [("provider", 1), ("unknown", 1)];
    assert_eq!(rows(&postgres).await, counts(&both));
    assert_eq!(one.tokens("provider", "output"), 7);
}

#[tokio::test]
async fn without_the_durable_store_usage_is_not_taken_and_counts_when_it_is_back() {
    let (postgres, _fleet, [one]) = on_postgres().await;
    postgres.kill().await.unwrap();
    let away = one.try_record(vec![usage(7, 1)]).await.unwrap_err();
    assert_eq!(away.code(), Code::Unavailable, "{away:?}");
    let away = one.try_open(7, vec![open(2)]).await.unwrap_err();
    assert_eq!(away.code(), Code::Unavailable, "{away:?}");
    postgres.start_again().await.unwrap();
    eventually("the store", async || {
        one.try_record(vec![usage(7, 1)]).await.is_ok()
    })
    .await;
    assert_eq!(rows(&postgres).await, counts(&[("estimated", 1)]));
}

#[tokio::test]
async fn one_record_that_cannot_be_read_is_named_and_the_others_count() {
    let (postgres, _fleet, [one]) = on_postgres().await;
    let spoiled = |number, spoil: fn(&mut report::Usage)| {
        let mut usage = usage(7, number);
        spoil(&mut usage);
        usage
    };
    let refused = one.try_record(vec![
        usage(7, 1),
        spoiled(2, |usage| usage.provider.clear()),
        usage(7, 3),
        spoiled(4, |usage| usage.model = "a b".to_owned()),
        spoiled(5, |usage| usage.attempt = None),
    ]);
    let refused = refused.await.unwrap();
    let places: Vec<u32> = refused.iter().map(|it| it.index).collect();
    assert_eq!(places, [1, 3, 4]);
    assert!(refused[0].reason.contains("provider"), "{refused:?}");
    assert_eq!(rows(&postgres).await, counts(&[("estimated", 2)]));
    let of = |reason: &str| {
        one.counter(&format!(
            "usage_records_refused_total{{reason=\"{reason}\"}}"
        ))
    };
    assert_eq!((of("missing"), of("name"), of("value")), (2, 1, 0));
    // Of answers under way the same.
    one.try_open(7, vec![open(0), open(9)]).await.unwrap();
    let open = "SELECT number FROM open_attempts";
    let open = postgres.execute(DATABASE, open).await.unwrap();
    assert_eq!(open, [[Some("9".to_owned())]]);
    assert_eq!(of("value"), 1);
}

#[tokio::test]
async fn what_breaks_the_contract_is_refused_and_changes_nothing() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let refused = async |usages| one.try_record(usages).await.unwrap_err().code();
    let many: Vec<_> = (1..=1_001).map(|number| usage(7, number)).collect();
    assert_eq!(refused(many).await, Code::InvalidArgument);
    let refused = async |plane, opened| one.try_open(plane, opened).await.unwrap_err().code();
    assert_eq!(refused(0, vec![open(1)]).await, Code::InvalidArgument);
    let many = (1..=1_001).map(open).collect();
    assert_eq!(refused(7, many).await, Code::InvalidArgument);
    assert_eq!(one.recorded("estimated"), 0);
}
