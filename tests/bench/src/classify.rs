//! What judging an error costs: bodies of 1, 8 and 64 KiB, four statuses each, in this process.
//!
//! The limit beside it reads every byte of the body once, and writes its lower case: text can hardly be looked at for
//! less. Growth is what 8 times as many bytes cost, and stays below 8 when the time is linear. Classification cuts
//! bodies at 8 KiB, so from 8 to 64 it should be 1.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tidegate_core::classify::{ClassifyContext, classify};
use tidegate_core::ids::{ModelId, ProviderId};
use tidegate_core::outcome::{Outcome, UpstreamError};
use tidegate_core::settings::ProviderPolicy;
use tidegate_core::time::Timestamp;

use crate::ROUNDS;
use crate::load::median;
use crate::rules;
use crate::summary::Summary;

const KIB: usize = 1_024;
const SIZES: [usize; 3] = [KIB, 8 * KIB, 64 * KIB];
/// Between them they consult every table.
const STATUSES: [u16; 4] = [400, 403, 429, 500];
/// How long each text is judged in a round.
const TURN: Duration = Duration::from_millis(20);

/// One kind of body.
struct Kind {
    /// In the figures' names.
    name: &'static str,
    make: fn(usize) -> String,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "prose",
        make: prose,
    },
    Kind {
        name: "json",
        make: json_with_words_at_its_end,
    },
    Kind {
        name: "hostile",
        make: beginnings,
    },
];

/// Text in which nothing is found.
fn prose(bytes: usize) -> String {
    repeated(
        "Something went wrong while we were talking to the machine that does the work. ",
        bytes,
    )
}

/// A body that has to be read to its end.
fn json_with_words_at_its_end(bytes: usize) -> String {
    let (before, after) = (r#"{"error":{"message":""#, r#" rate limit"}}"#);
    let filling = prose(bytes.saturating_sub(before.len() + after.len()));
    format!("{before}{filling}{after}")
}

/// Beginnings of phrases whose ends never come.
fn beginnings(bytes: usize) -> String {
    repeated(
        "model context daily suspended quota credit plan max endpoint ",
        bytes,
    )
}

fn repeated(text: &str, bytes: usize) -> String {
    let mut filled = text.repeat(bytes / text.len() + 1);
    filled.truncate(bytes);
    filled
}

/// One body with all its runs.
struct Side {
    name: String,
    outcomes: Vec<Outcome>,
    text: String,
    nanoseconds: Vec<f64>,
    limit_nanoseconds: Vec<f64>,
}

/// Measures all kinds and notes the figures.
pub(crate) fn measure(summary: &mut Summary) -> Result<()> {
    let config = rules::config()?;
    let provider = ProviderId::new(rules::PROVIDER)?;
    let model = ModelId::new("m")?;
    let policy = &config.provider(&provider).context("no provider")?.policy;
    let mut sides = Vec::new();
    for kind in &KINDS {
        for size in SIZES {
            sides.push(side(kind, size));
        }
    }
    // In turns, so that what else the machine does meets all of them.
    for _ in 0..ROUNDS {
        for side in &mut sides {
            let judged = |outcome: &Outcome| judge(outcome, &provider, policy, &model);
            side.nanoseconds.push(time(&side.outcomes, judged));
            let bodies = std::slice::from_ref(&side.text);
            let lowered = |text: &String| drop(black_box(black_box(text).to_ascii_lowercase()));
            side.limit_nanoseconds.push(time(bodies, lowered));
        }
    }
    for of_kind in sides.chunks(SIZES.len()) {
        note(of_kind, summary);
    }
    Ok(())
}

fn side(kind: &Kind, size: usize) -> Side {
    let text = (kind.make)(size);
    let outcomes = STATUSES.map(|status| {
        Outcome::Response(UpstreamError {
            status,
            body: text.clone(),
            ..UpstreamError::default()
        })
    });
    Side {
        name: format!("classify.{}.{}kib", kind.name, size / KIB),
        outcomes: outcomes.to_vec(),
        text,
        nanoseconds: Vec::new(),
        limit_nanoseconds: Vec::new(),
    }
}

fn judge(outcome: &Outcome, provider: &ProviderId, policy: &ProviderPolicy, model: &ModelId) {
    let context = ClassifyContext::of(provider, policy, model, Timestamp(1));
    black_box(classify(black_box(outcome), &context));
}

/// Nanoseconds for each of some inputs.
fn time<T>(inputs: &[T], mut work: impl FnMut(&T)) -> f64 {
    let started = Instant::now();
    let mut calls: u64 = 0;
    loop {
        for input in inputs {
            work(input);
            calls += 1;
        }
        let spent = started.elapsed();
        if spent >= TURN {
            return spent.as_nanos() as f64 / calls as f64;
        }
    }
}

fn note(of_kind: &[Side], summary: &mut Summary) {
    let mut before: Option<f64> = None;
    for side in of_kind {
        let each = median(side.nanoseconds.iter().copied());
        let limit = median(side.limit_nanoseconds.iter().copied());
        let mut set = |name: &str, figure| summary.set(format!("{}.{name}", side.name), figure);
        set("ns", each);
        set("lower_case_ratio", each / limit);
        if let Some(before) = before {
            set("growth", each / before);
        }
        before = Some(each);
    }
}
