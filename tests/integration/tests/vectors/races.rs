//! Vectors 8, 15 to 18 and 32 as races: two replicas are told at the same moment, many times over.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tidegate_proto::common::v1::{Attempt, TransportFault, outcome::Kind};
use tidegate_proto::routing::v1::decide_response::Step;
use tidegate_proto::routing::v1::{DecideResponse, Reject};

use super::stage::{End, Setting, Stage, dispatched};

const ROUNDS: u64 = 60;

/// The attempt that was admitted, if exactly one was, and the refusal of the other.
fn one_admitted(answers: &[DecideResponse; 2]) -> Result<(usize, Attempt, Reject)> {
    let admitted: Vec<_> = answers
        .iter()
        .enumerate()
        .filter_map(|(replica, answer)| Some((replica, dispatched(answer).ok()?)))
        .collect();
    let refused = answers.iter().find_map(|answer| match &answer.step {
        Some(Step::Reject(reject)) => Some(reject.clone()),
        Some(Step::Dispatch(_) | Step::Wait(_) | Step::Plan(_)) | None => None,
    });
    ensure!(admitted.len() == 1, "not exactly one: {answers:?}");
    let (replica, attempt) = admitted.into_iter().next().context("one")?;
    Ok((replica, attempt, refused.context("the other is refused")?))
}

async fn race_for_the_probe(stage: &Stage) -> Result<(usize, Attempt)> {
    stage
        .everywhere(
            "a free probe",
            async |replica| stage.breaker(replica).await,
            |breaker| breaker.state == "HALF_OPEN" && breaker.retry_after_ms == 0,
        )
        .await?;
    let (first, second) = tokio::try_join!(stage.decide(0, "p/m"), stage.decide(1, "p/m"))?;
    let (winner, probe, refused) = one_admitted(&[first, second])?;
    ensure!(probe.probe, "{probe:?}");
    ensure!(refused.status == 503, "{refused:?}");
    ensure!(refused.retry_after_seconds >= Some(1), "{refused:?}");
    Ok((winner, probe))
}

/// The permit is minted by whoever comes first after the wait, and handed on after each way to come back.
#[tokio::test]
async fn end_to_end_vector_failure_08_two_replicas_admit_one_probe() -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("apikey")).await?;
    stage.count(12, 130_000).await?;
    let mut wins = [0; 2];
    let mut failed = 0;
    for round in 0..ROUNDS {
        let (winner, probe) = race_for_the_probe(&stage).await?;
        wins[winner] += 1;
        let other = 1 - winner;
        match round % 3 {
            0 => stage.abandon(other, &probe).await?,
            1 => {
                let gone = Kind::ClientAbort(tidegate_proto::common::v1::ClientAbort {});
                let end = End::of(probe, gone).at(stage.now().await?);
                stage.report(other, end).await?;
            }
            // It opens again, for at most the 120 s that have passed since.
            _ => {
                failed += 1;
                let at = stage.now().await? - 125_000;
                stage.report(other, End::status(probe, 503).at(at)).await?;
                stage.expect_breaker("HALF_OPEN", 12 + failed).await?;
            }
        }
    }
    let (winner, probe) = race_for_the_probe(&stage).await?;
    let end = End::success(probe).at(stage.now().await?);
    stage.report(1 - winner, end).await?;
    stage.expect_breaker("CLOSED", 0).await?;
    assert!(
        wins.iter().all(|wins| *wins > 0),
        "a replica never came first: {wins:?}"
    );
    Ok(())
}

/// One replica opens the breaker; at that moment, knowing of it or not, the other is told the end of an attempt from
/// before.
#[tokio::test]
async fn end_to_end_vector_failure_15_16_late_ends_race_with_the_opening() -> Result<()> {
    let stage = Stage::start(Setting {
        settings: json!({"providerBreaker": {
            "apikey": {"failureThreshold": 2, "degradationThreshold": 1, "resetTimeoutMs": 3_600_000},
            "dedupConnectionMs": 0,
        }}),
        ..Setting::never_cooling("apikey")
    })
    .await?;
    for round in 0..ROUNDS {
        let late = [stage.attempt("c1").await?, stage.attempt("c1").await?];
        stage.failures(2, 503, 30_000, 1_000).await?;
        // Only the replica that wrote is sure to know.
        let open = stage.breaker(0).await?;
        assert_eq!((open.state.as_str(), open.failure_count), ("OPEN", 2));
        let [success, failure] = late;
        let at = stage.now().await?;
        let (knowing, unknowing) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        tokio::try_join!(
            stage.report(unknowing, End::success(success).at(at)),
            stage.report(knowing, End::status(failure, 503).at(at)),
        )?;
        let after = stage.expect_breaker("OPEN", 2).await?;
        assert_eq!(after.last_failure_unix_ms, open.last_failure_unix_ms);
        stage.reset_breaker().await?;
        stage.expect_breaker("CLOSED", 0).await?;
    }
    Ok(())
}

/// Two failures of one connection less than the de-duplication apart, one to each replica, count once.
#[tokio::test]
async fn end_to_end_vector_failure_17_two_replicas_count_one_connection_once() -> Result<()> {
    let stage = Stage::start(Setting {
        settings: json!({"providerBreaker": {
            "apikey": {"failureThreshold": 1_000}, "dedupConnectionMs": 1_000,
        }}),
        ..Setting::never_cooling("apikey")
    })
    .await?;
    let from = stage.now().await? - ROUNDS * 2_500;
    for round in 0..ROUNDS {
        let attempts = [stage.attempt("c1").await?, stage.attempt("c1").await?];
        let [one, two] = attempts.map(|attempt| End::status(attempt, 503));
        let at = from + round * 2_500;
        tokio::try_join!(
            stage.report(0, one.at(at)),
            stage.report(1, two.at(at + 999)),
        )?;
        let state = "CLOSED";
        stage
            .everywhere(
                "one failure more",
                async |replica| stage.breaker(replica).await,
                |seen| u64::from(seen.failure_count) > round,
            )
            .await?;
        assert_eq!(
            u64::from(stage.breaker(0).await?.failure_count),
            round + 1,
            "{state}"
        );
    }
    Ok(())
}

/// An egress proxy fails for two connections at once, each seen by another replica: one failure of the provider.
#[tokio::test]
async fn end_to_end_vector_failure_18_two_replicas_count_one_egress_fault_once() -> Result<()> {
    let stage = Stage::start(Setting {
        settings: json!({"providerBreaker": {
            "apikey": {"failureThreshold": 1_000}, "dedupConnectionMs": 0, "dedupProviderMs": 1_000,
        }}),
        ..Setting::never_cooling("apikey").with_connections(3)
    })
    .await?;
    let from = stage.now().await? - ROUNDS * 2_500;
    for round in 0..ROUNDS {
        let at = from + round * 2_500;
        let mut ends = Vec::new();
        for (connection, after_ms) in [("c1", 0), ("c2", 500), ("c3", 999)] {
            let attempt = stage.attempt(connection).await?;
            let fault = Kind::Transport(TransportFault::ProxyUnreachable.into());
            ends.push(End::of(attempt, fault).of_combo().at(at + after_ms));
        }
        let [one, two, three] = <[End; 3]>::try_from(ends).map_err(|_| anyhow::anyhow!("three"))?;
        tokio::try_join!(stage.report(0, one), stage.report(1, two))?;
        stage.report(1, three).await?;
        assert_eq!(u64::from(stage.breaker(1).await?.failure_count), round + 1);
    }
    stage
        .expect_breaker("DEGRADED", u32::try_from(ROUNDS)?)
        .await?;
    Ok(())
}

/// Two failures half a second apart, decided before either was known, one to each replica: one step of the ladder.
#[tokio::test]
async fn end_to_end_vector_failure_32_two_replicas_climb_one_step() -> Result<()> {
    let stage = Stage::start(Setting {
        settings: json!({"providerBreaker": {"apikey": {"failureThreshold": 1_000}}}),
        ..Setting::cooling("apikey")
    })
    .await?;
    for round in 0..ROUNDS {
        let attempts = [stage.attempt("c1").await?, stage.attempt("c1").await?];
        let [one, two] = attempts.map(|attempt| End::status(attempt, 503));
        let at = stage.now().await? - 500;
        let (first, second) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        tokio::try_join!(
            stage.report(first, one.at(at)),
            stage.report(second, two.at(at + 500)),
        )?;
        let seen = stage
            .expect_connection("c1", "level 1", |seen| seen.backoff_level == 1)
            .await?;
        assert_eq!(seen.state, "unavailable", "{seen:?}");
        let until = stage.excluded_until(0, "c1", "connection_cooldown").await?;
        assert!(
            until == Some(at + 3_000) || until == Some(at + 3_500),
            "{seen:?}"
        );
        let well = stage.attempt("c1").await?;
        stage.report(0, End::success(well).at(at + 501)).await?;
        stage
            .expect_connection("c1", "clear", |seen| seen.state == "active")
            .await?;
    }
    Ok(())
}
