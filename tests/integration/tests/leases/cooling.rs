//! Connections that cool down: one whoever has it, and one whose lease finds another, so that it moves.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Mode, Selector};

use super::clients::Owner;
use super::history::{Answer, Fault, LeaseName, Span};
use super::schedule::Request;
use super::stage::Stage;

/// For so long a connection cools down that the upstream turns away.
pub(crate) const COOLS: Duration = Duration::from_secs(2);
/// How long it may take until a lease has moved: whatever was in flight is gone by then, on every connection.
const MOVE_LIMIT: Duration = Duration::from_secs(30);
/// What a try waits for longer than connections cool down.
const PACE: Duration = Duration::from_millis(200);
/// Longer than a try takes.
const MOVER_TTL: Duration = Duration::from_secs(6);

/// What the upstream does with requests.
pub(crate) fn mode(request: Request) -> Mode {
    match request {
        Request::Quick => Mode::Ok,
        Request::Late => Mode::Latency {
            before: Duration::from_millis(700),
        },
        Request::Stream => Mode::SlowDrip {
            gap: Duration::from_millis(200),
        },
        Request::Endless => Mode::Stall { events: 2 },
    }
}

/// Turns a connection away, counted from 1.
pub(crate) fn turn_away(stage: &Stage, number: usize) {
    answer(stage, number, |_| {
        Mode::rate_limited(COOLS.as_secs().to_string())
    });
}

/// Serves it again.
pub(crate) fn serve(stage: &Stage, number: usize) {
    answer(stage, number, mode);
}

fn answer(stage: &Stage, number: usize, mode: impl Fn(Request) -> Mode) {
    for request in Request::ALL {
        let connection = Selector::any().credential(format!("sk-c{number}"));
        let there = connection.model(request.model());
        stage.upstream.set(there, mode(request));
    }
}

/// Lets the connection of an owner cool down while another one is free, until its lease has moved there. The faults that it
/// took are returned, each of which lasts for `lasting` longer than the upstream turned away.
///
/// A try fails where the others' leases end while something is in flight: nothing is free then, and the lease is lost.
pub(crate) async fn move_a_lease(
    mover: &mut Owner,
    owners: u8,
    lasting: Duration,
) -> Result<Vec<(Fault, Span)>> {
    let room = Arc::clone(&mover.room);
    room.make(true);
    let is_made = || async { room.is_made(owners).then_some(()) };
    eventually(MOVE_LIMIT, "owners that make room", is_made).await?;
    let mut faults = Vec::new();
    let began = mover.record.now();
    while !try_to_move(mover, lasting, &mut faults).await? {
        let took = mover.record.now().saturating_sub(began);
        ensure!(took < MOVE_LIMIT, "no lease moved: {faults:?}");
        // The next one would find this connection cool still, and after some more all of them.
        tokio::time::sleep(COOLS + PACE).await;
    }
    mover.give_back(0).await?;
    room.make(false);
    Ok(faults)
}

/// Whether the lease moved.
async fn try_to_move(
    mover: &mut Owner,
    lasting: Duration,
    faults: &mut Vec<(Fault, Span)>,
) -> Result<bool> {
    mover.acquire(0, MOVER_TTL).await?;
    let Some(generation) = mover.generation else {
        return Ok(false);
    };
    let (stage, lease) = (Arc::clone(&mover.stage), mover.name(generation));
    let Some(number) = places(&stage, lease).await?.pop() else {
        return Ok(false);
    };
    let from = mover.record.now();
    turn_away(&stage, number);
    let mut plane = 0;
    let answer = loop {
        // The first is turned away; one after it moves the lease, or finds nothing to move it to.
        let answer = mover.sending(plane, generation, Request::Quick)?.await;
        let goes_on = matches!(answer, Answer::Failed | Answer::Unknown);
        if !goes_on || mover.record.now().saturating_sub(from) >= MOVER_TTL {
            break answer;
        }
        plane += 1;
    };
    serve(&stage, number);
    let until = mover.record.now() + lasting;
    faults.push((Fault::Cool { connection: number }, Span::new(from, until)));
    Ok(answer == Answer::Served && places(&stage, lease).await?.len() > 1)
}

/// The numbers of the connections that a lease was on, in order.
async fn places(stage: &Stage, lease: LeaseName) -> Result<Vec<usize>> {
    let rows = stage.rows(lease.owner.saturating_add(1)).await?;
    let of_lease = rows.iter().filter(|row| row.lease == lease);
    let number = |connection: &str| {
        let number = connection
            .strip_prefix('c')
            .context("a foreign connection")?;
        Ok(number.parse()?)
    };
    of_lease.map(|row| number(&row.connection)).collect()
}
