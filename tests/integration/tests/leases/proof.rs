//! The proof: owners at random, a fleet that is hurt at random, and a history that is checked.
//!
//! `TIDEGATE_LEASES_SECONDS` makes it run for another time than a minute, `TIDEGATE_LEASES_SEED` with a seed of one's own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tidegate_test_support::upstream::{Ending, Reply, Selector};
use tidegate_test_support::{FleetOptions, eventually};
use tokio_util::task::TaskTracker;

use super::asleep::Ticker;
use super::check::{Rules, check, strength, undisturbed_requests};
use super::clients::{Marker, Owner, Record};
use super::cooling::{COOLS, mode, move_a_lease, serve, turn_away};
use super::history::{Answer, Arrival, Asked, Fault, History, NEVER, Span};
use super::losses::losses;
use super::room::Room;
use super::schedule::{Deed, Mischiefs, Request};
use super::stage::{Setup, Stage};

const SECONDS: u64 = 60;
/// More than connections, so that there are always some who wait. What comes free is taken at once, so that of itself
/// hardly any lease moves: one more owner has its lease move while others make room.
const OWNERS: u8 = 5;
const CONNECTIONS: usize = 4;
const RULES: Rules = Rules {
    horizon: Duration::from_millis(5_000),
    guard: Duration::from_millis(800),
    drain: Duration::from_millis(1_000),
    cut_late: Duration::from_millis(700),
    noticed_late: Duration::from_millis(300),
    unheard_late: Duration::from_secs(5),
    question: Duration::from_secs(1),
    recovery: Duration::from_secs(4),
    clocks: Duration::from_millis(100),
};
/// How long a process that was killed may take to serve again.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// So many requests of a run must have been served and count for all that is promised of them, however long it is.
const UNDISTURBED: usize = 5;

fn setup() -> Setup {
    Setup {
        connections: CONNECTIONS,
        // So few that requests wait for a permit after they were decided and before their fence; so many that the line
        // is not mostly full.
        concurrent: &[1, 2],
        models: Request::ALL.map(Request::model).to_vec(),
        settings: json!({
            "leases": {
                "horizonMs": RULES.horizon.as_millis(),
                "guardMs": RULES.guard.as_millis(),
                "drainMs": RULES.drain.as_millis(),
            },
            "providerBreaker": {"apikey": {"failureThreshold": 1_000, "degradationThreshold": 999}},
            "connectionCooldown": {"apikey": {"baseCooldownMs": COOLS.as_millis(), "maxBackoffSteps": 0}},
        }),
        ..Setup::default()
    }
}

fn number(name: &str) -> Result<Option<u64>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text.parse().with_context(|| name.to_owned())?)),
        Err(_) => Ok(None),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_histories_hold_what_leases_promise() -> Result<()> {
    let seed = number("TIDEGATE_LEASES_SEED")?.unwrap_or_else(rand::random);
    let time = Duration::from_secs(number("TIDEGATE_LEASES_SECONDS")?.unwrap_or(SECONDS));
    say(&format!("seed {seed}, {time:?}"));
    let (history, strange) = run(seed, time).await?;
    let mut summary = String::new();
    for ((kind, answer), count) in history.counts() {
        writeln!(summary, "{kind} {answer}: {count}")?;
    }
    for (others, count) in losses(&history, RULES.clocks) {
        writeln!(summary, "lost, the other connections {others}: {count}")?;
    }
    let asleep: Duration = (history.asleep.iter())
        .map(|gap| gap.until.saturating_sub(gap.from))
        .sum();
    let undisturbed = undisturbed_requests(&history, &RULES);
    writeln!(summary, "send served undisturbed: {undisturbed}")?;
    writeln!(
        summary,
        "the upstream did not run: {} times, {asleep:?}",
        history.asleep.len()
    )?;
    for (what, count) in &strange {
        writeln!(summary, "unexpected: {what}: {count}")?;
    }
    for (fault, span) in &history.faults {
        writeln!(summary, "{fault:?}: {:?} to {:?}", span.from, span.until)?;
    }
    say(&summary);
    let violations = check(&history, &RULES);
    for violation in violations.iter().take(20) {
        say(&format!("{violation:?}"));
    }
    if !violations.is_empty() {
        // Who looks for the reason needs all of it.
        for operation in &history.operations {
            say(&format!("{operation:?}"));
        }
        for row in &history.rows {
            say(&format!("{row:?}"));
        }
    }
    ensure!(
        violations.is_empty(),
        "seed {seed}: {} violations, the first: {:?}",
        violations.len(),
        violations.first()
    );
    ensure!(strange.is_empty(), "seed {seed}: {strange:?}");
    is_enough(&history, time).with_context(|| format!("seed {seed}"))?;
    is_strong(&history, seed)
}

/// A checker that would find nothing proves nothing either.
fn is_strong(history: &History, seed: u64) -> Result<()> {
    let strengths = strength(history, &RULES, seed);
    for strength in &strengths {
        say(&format!("{strength:?}"));
    }
    let weak = strengths.iter().find(|strength| !strength.is_enough());
    ensure!(weak.is_none(), "seed {seed}: {weak:?}");
    Ok(())
}

/// A run in which too little happened proves nothing.
fn is_enough(history: &History, time: Duration) -> Result<()> {
    let counts = history.counts();
    let minutes = time.as_secs_f64() / 60.0;
    for (kind, answer, a_minute) in [
        ("acquire", "granted", 40.0),
        ("acquire", "busy", 20.0),
        ("renew", "granted", 30.0),
        ("renew", "over", 2.0),
        ("release", "granted", 12.0),
        ("status", "granted", 12.0),
        ("send", "served", 30.0),
        ("send", "over", 5.0),
        ("send", "cut", 2.0),
        ("dispatch", "answered", 30.0),
        ("dispatch", "aborted", 2.0),
        ("dispatch", "waited", 1.0),
        // What one round does: a busy machine comes through little more in a minute.
        ("fault", "pause", 2.0),
        ("fault", "stop", 1.0),
        ("fault", "kill", 1.0),
        ("fault", "restart", 1.0),
        ("fault", "cool", 2.0),
        ("lease", "moved", 1.0),
    ] {
        let count = counts.get(&(kind, answer)).copied().unwrap_or_default();
        let wanted = a_minute * minutes;
        let enough = u32::try_from(count).is_ok_and(|count| f64::from(count) >= wanted);
        ensure!(enough, "{kind} {answer}: {count} of {wanted}");
    }
    let undisturbed = undisturbed_requests(history, &RULES);
    ensure!(
        undisturbed >= UNDISTURBED,
        "{undisturbed} requests of {UNDISTURBED} undisturbed"
    );
    for word in ["pause", "stop", "kill", "restart", "cool"] {
        let first = history
            .faults
            .iter()
            .filter(|(fault, _)| fault.word() == word)
            .map(|(_, span)| span.until)
            .min();
        let acquired = history.operations.iter().any(|operation| {
            let granted = matches!(
                (operation.asked, operation.answer),
                (Asked::Acquire { .. }, Answer::Lease { .. })
            );
            granted && first.is_some_and(|first| operation.span.from >= first)
        });
        ensure!(acquired, "nothing was acquired after the first {word}");
    }
    Ok(())
}

/// For people; the runner shows it when the test ends.
fn say(text: &str) {
    // There is nobody left to tell if this fails.
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Answers that nothing was made of, and how often.
type Strange = BTreeMap<String, u64>;

async fn run(seed: u64, time: Duration) -> Result<(History, Strange)> {
    let stage = Arc::new(Stage::start(&setup(), FleetOptions::default()).await?);
    for request in Request::ALL {
        stage
            .upstream
            .set(Selector::any().model(request.model()), mode(request));
    }
    stage.upstream.set_reply(Reply {
        chunks: 8,
        ..Reply::default()
    });
    let record = Arc::new(Record::new());
    let ticker = Ticker::start(Arc::clone(&record));
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let epoch = epoch.saturating_sub(record.now());
    let (owners, requests) = (TaskTracker::new(), TaskTracker::new());
    let room = Arc::new(Room::new());
    let owner = |number| Owner {
        number,
        stage: Arc::clone(&stage),
        record: Arc::clone(&record),
        requests: requests.clone(),
        room: Arc::clone(&room),
        generation: None,
    };
    let running: Vec<_> = (0..OWNERS)
        .map(|number| owners.spawn(owner(number).run(seed, time)))
        .collect();
    let faults = hurt(owner(OWNERS), seed, time).await?;
    for owner in running {
        owner.await??;
    }
    requests.close();
    requests.wait().await;
    let arrivals = arrivals(&stage, &record).await?;
    let mut operations = record.operations();
    for operation in &mut operations {
        // Cut before its answer began; it is answered like one that was never sent.
        if let (Asked::Send { number, .. }, Answer::Over) = (operation.asked, operation.answer)
            && arrivals.iter().any(|arrival| arrival.number == number)
        {
            operation.answer = Answer::Cut;
        }
    }
    let mut rows = stage.rows(OWNERS + 1).await?;
    for row in &mut rows {
        let at = |moment: Duration| moment.saturating_sub(epoch);
        row.held = Span::new(at(row.held.from), at(row.held.until));
    }
    let history = History {
        operations,
        arrivals,
        rows,
        faults,
        asleep: ticker.asleep(),
    };
    let mut strange = record.strange();
    // What the upstream turns away it turns away while a connection is to cool down.
    let failures =
        (history.operations.iter()).filter(|operation| operation.answer == Answer::Failed);
    let unexpected = failures.filter(|failed| {
        !history.faults.iter().any(|(fault, span)| {
            matches!(fault, Fault::Cool { .. }) && failed.span.and(*span).is_some()
        })
    });
    strange.extend(unexpected.map(|failed| (format!("{failed:?}"), 1)));
    Ok((history, strange))
}

/// Hurts the fleet for a time; all is well again when this returns.
async fn hurt(mut mover: Owner, seed: u64, time: Duration) -> Result<Vec<(Fault, Span)>> {
    let (stage, record) = (Arc::clone(&mover.stage), Arc::clone(&mover.record));
    let mut faults = Vec::new();
    for mischief in Mischiefs::new(seed, RULES.guard) {
        if record.now() + mischief.pause + mischief.lasts >= time {
            break;
        }
        tokio::time::sleep(mischief.pause).await;
        let from = record.now();
        // A failure may be told late by as much as the authority takes to recover.
        let lasting = COOLS + RULES.recovery;
        match mischief.deed {
            Deed::Calm => tokio::time::sleep(mischief.lasts).await,
            Deed::Move => faults.extend(move_a_lease(&mut mover, OWNERS, lasting).await?),
            Deed::Fault(fault) => {
                let fault = happens(&stage, fault, mischief.lasts).await?;
                let lasting = match fault {
                    Fault::Cool { .. } => lasting,
                    Fault::Pause { .. }
                    | Fault::Stop { .. }
                    | Fault::Kill { .. }
                    | Fault::Restart => Duration::ZERO,
                };
                faults.push((fault, Span::new(from, record.now() + lasting)));
            }
        }
    }
    Ok(faults)
}

async fn happens(stage: &Stage, fault: Fault, lasts: Duration) -> Result<Fault> {
    let fleet = &stage.fleet;
    match fault {
        Fault::Pause { plane } => {
            let plane = plane
                .checked_rem(fleet.data_planes.len())
                .context("no data planes")?;
            let process = &fleet.data_planes[plane].process;
            process.pause()?;
            tokio::time::sleep(lasts).await;
            process.resume()?;
            Ok(Fault::Pause { plane })
        }
        Fault::Stop { replica } => {
            let replica = replica
                .checked_rem(fleet.control_planes.len())
                .context("no control planes")?;
            let process = &fleet.control_planes[replica].process;
            process.pause()?;
            tokio::time::sleep(lasts).await;
            process.resume()?;
            Ok(Fault::Stop { replica })
        }
        Fault::Kill { replica } => {
            let replica = replica
                .checked_rem(fleet.control_planes.len())
                .context("no control planes")?;
            let control_plane = &fleet.control_planes[replica];
            control_plane.process.kill().await?;
            tokio::time::sleep(lasts).await;
            control_plane.process.start_again()?;
            control_plane
                .process
                .wait_for_http(control_plane.http, "/readyz", READY_LIMIT)
                .await?;
            Ok(Fault::Kill { replica })
        }
        Fault::Restart => {
            fleet.postgres.stop_immediately().await?;
            fleet.postgres.start_again().await?;
            Ok(Fault::Restart)
        }
        Fault::Cool { connection } => {
            let number = connection % CONNECTIONS + 1;
            turn_away(stage, number);
            tokio::time::sleep(lasts).await;
            serve(stage, number);
            Ok(Fault::Cool { connection: number })
        }
    }
}

/// What the upstream saw, when all of it has ended.
async fn arrivals(stage: &Stage, record: &Record) -> Result<Vec<Arrival>> {
    let log = stage.upstream.log();
    let all = eventually(READY_LIMIT, "the end of every request", || async {
        let all = log.requests(&Selector::any());
        all.iter()
            .all(|request| request.ending.is_some())
            .then_some(all)
    })
    .await?;
    // The upstream counts from its own start, which was earlier.
    let earlier = record.began().duration_since(log.started());
    let mut arrivals = Vec::new();
    for request in all {
        let json = request.json().context("a body that is no JSON")?;
        let marker = Marker::of(json["user"].as_str().context("a request without marker")?)?;
        let credential = request.credential.context("a request without credential")?;
        let at = |moment: Duration| moment.saturating_sub(earlier);
        arrivals.push(Arrival {
            number: marker.number,
            lease: marker.lease,
            connection: credential
                .strip_prefix("sk-")
                .context("a foreign credential")?
                .to_owned(),
            plane: marker.plane,
            span: Span::new(at(request.at), at(request.ended_at.unwrap_or(NEVER))),
            aborted: request.ending == Some(Ending::Aborted),
        });
    }
    Ok(arrivals)
}
