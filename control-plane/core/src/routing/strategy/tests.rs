//! Strategies on a stage on which everything they look at is laid out by hand.

mod catalogue;
mod chance;
mod layers;
mod memory;
mod page;
mod performance;
mod properties;
mod quotas;
mod rotation;
mod weighted;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::catalogue::ModelInfo;
use crate::ids::ModelId;
use crate::number::Finite;
use crate::telemetry::{LastKnownGood, Performance, QuotaSnapshot, QuotaWindow};

use super::stage::{Actor, NOW, Stage, seen};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

impl Stage {
    fn set_quota(&mut self, letter: char, quota: QuotaSnapshot) {
        self.actor(letter).quota = Some(quota);
    }

    fn set_info(&mut self, letter: char, info: ModelInfo) {
        self.actor(letter).info = info;
    }

    fn set_performance(&mut self, letter: char, known: Performance) {
        self.actor(letter).combo_performance = Some(known);
    }
}

fn connection(name: &str) -> ConnectionId {
    ConnectionId::new(name).unwrap()
}

fn finite(number: f64) -> Finite {
    Finite::new(number).unwrap()
}

/// A window that is used to this share and begins anew after so long.
fn window(used: f64, left_ms: u64) -> QuotaWindow {
    QuotaWindow {
        used: finite(used),
        resets_at: Some(NOW.plus_ms(left_ms)),
        observed_at: None,
    }
}

/// A window that began anew so long ago.
fn past_window(used: f64, ago_ms: u64) -> QuotaWindow {
    QuotaWindow {
        used: finite(used),
        resets_at: Some(NOW.minus_ms(ago_ms)),
        observed_at: None,
    }
}
