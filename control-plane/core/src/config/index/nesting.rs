//! How far references to other combos are followed, and whether the order within them is theirs (`routing.md` §1.6).

use super::super::{ComboConfig, NestedComboMode, Strategy};

/// Depth to which references are followed, where a combo says nothing.
const DEFAULT_DEPTH: u32 = 3;
const MAX_DEPTH: u32 = 10;
/// How deep references are followed: 1..=10; what is no such depth is 3, and what is deeper is 10.
pub(in super::super) fn depth_limit(written: Option<u32>) -> u32 {
    match written {
        None | Some(0) => DEFAULT_DEPTH,
        Some(depth) => depth.min(MAX_DEPTH),
    }
}

/// Whether a combo leaves the order within what it refers to, to that.
pub(super) fn executes(strategy: Strategy, config: &ComboConfig) -> bool {
    match strategy {
        // A member of a panel always is a request of its own.
        Strategy::Fusion => true,
        Strategy::Priority
        | Strategy::Weighted
        | Strategy::RoundRobin
        | Strategy::Random
        | Strategy::StrictRandom => config.nested_combo_mode == Some(NestedComboMode::Execute),
        Strategy::ContextRelay
        | Strategy::FillFirst
        | Strategy::P2c
        | Strategy::LeastUsed
        | Strategy::CostOptimized
        | Strategy::ResetAware
        | Strategy::ResetWindow
        | Strategy::Headroom
        | Strategy::Auto
        | Strategy::Lkgp
        | Strategy::ContextOptimized
        | Strategy::CacheOptimized
        | Strategy::Pipeline
        | Strategy::QuotaShare => false,
    }
}
