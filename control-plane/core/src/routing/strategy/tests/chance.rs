//! `random` (`routing.md` §8.7) and the orders that leave nothing to chance (§8.1, §8.4, §8.5).

use rstest::rstest;

use super::*;

#[test]
fn vector_routing_v_ra1() {
    let mut stage = Stage::of("ABC");
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 0..6_000 {
        stage.seed = seed;
        *seen.entry(stage.written(Strategy::Random)).or_default() += 1;
    }
    assert_eq!(seen.len(), 6);
    for (order, times) in &seen {
        assert!((880..=1_120).contains(times), "{order}: {times}");
    }
}

#[rstest]
#[case::priority(Strategy::Priority)]
#[case::fill_first(Strategy::FillFirst)]
#[case::context_relay(Strategy::ContextRelay)]
#[case::fusion(Strategy::Fusion)]
#[case::pipeline(Strategy::Pipeline)]
fn the_order_of_the_combo_is_kept(#[case] strategy: Strategy) {
    let mut stage = Stage::of("CAB");
    for seed in 0..20 {
        stage.seed = seed;
        assert_eq!(stage.written(strategy), "CAB");
    }
    assert!(of(strategy).keeps_order());
}

#[test]
fn vector_routing_v_ff1() {
    let mut stage = Stage::of("AB");
    let quota = QuotaSnapshot {
        session: Some(window(0.99, HOUR_MS)),
        used: Some(finite(0.99)),
        ..seen()
    };
    stage.set_quota('A', quota);
    assert_eq!(stage.written(Strategy::FillFirst), "AB");
}

#[test]
fn accounts_are_expanded_where_their_quota_or_cache_decides() {
    let expanding: Vec<Strategy> = Strategy::ALL
        .iter()
        .copied()
        .filter(|strategy| of(*strategy).expands_accounts())
        .collect();
    for strategy in [
        Strategy::Headroom,
        Strategy::ResetAware,
        Strategy::ResetWindow,
        Strategy::CacheOptimized,
    ] {
        assert!(expanding.contains(&strategy), "{strategy:?}");
    }
    for strategy in [Strategy::Priority, Strategy::RoundRobin, Strategy::P2c] {
        assert!(!expanding.contains(&strategy), "{strategy:?}");
    }
}
