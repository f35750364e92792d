//! `weighted` (`routing.md` §8.2, decision 36).

use rstest::rstest;

use super::*;

/// Steps with these weights, and a request whose draw is `unit`.
fn stage(weights: &[u32], unit: f64) -> Stage {
    let letters: String = ('A'..).take(weights.len()).collect();
    let mut stage = Stage::of(&letters);
    for (actor, weight) in stage.actors.iter_mut().zip(weights) {
        actor.weight = Finite::from(*weight);
    }
    stage.seed = stage.seed_where(|random| (random.unit() - unit).abs() < 0.001);
    stage
}

#[rstest]
#[case::vector_routing_v_w1(&[70, 20, 10], 0.50, "", "ABC")]
#[case::vector_routing_v_w2(&[70, 20, 10], 0.75, "", "BAC")]
#[case::vector_routing_v_w3(&[70, 20, 10], 0.95, "", "CAB")]
#[case::vector_routing_v_w4(&[70, 20, 10], 0.50, "A", "BC")]
#[case::vector_routing_v_w6(&[10, 30, 30], 0.10, "", "ABC")]
#[case::the_heavier_of_what_is_left_is_next(&[10, 20, 70], 0.05, "", "ACB")]
#[case::a_draw_of_almost_one(&[70, 20, 10], 0.9999, "", "CAB")]
#[case::without_weight_only_where_nothing_else_is_left(&[0, 20, 10], 0.0005, "BC", "A")]
#[case::nothing_is_left(&[70, 20, 10], 0.50, "ABC", "")]
fn one_step_is_drawn_by_weight(
    #[case] weights: &[u32],
    #[case] unit: f64,
    #[case] excluded: &str,
    #[case] expected: &str,
) {
    let mut stage = stage(weights, unit);
    for letter in excluded.chars() {
        stage.exclude(letter);
    }
    assert_eq!(stage.tried(Strategy::Weighted), expected);
}

#[rstest]
#[case::first(0.1, 'A')]
#[case::second(0.5, 'B')]
#[case::third(0.9, 'C')]
fn vector_routing_v_w5(#[case] unit: f64, #[case] expected: char) {
    let stage = stage(&[0, 0, 0], unit);
    assert!(stage.written(Strategy::Weighted).starts_with(expected));
}

#[test]
fn a_step_without_weight_is_never_drawn_beside_one_that_has_some() {
    let mut stage = stage(&[0, 1, 0], 0.5);
    for seed in 0..2_000 {
        stage.seed = seed;
        assert_eq!(stage.written(Strategy::Weighted), "BAC");
    }
}

#[test]
fn what_is_excluded_comes_last_in_the_order_of_the_combo() {
    let mut stage = stage(&[10, 70, 90, 20], 0.01);
    stage.exclude('A');
    stage.exclude('C');
    assert_eq!(stage.written(Strategy::Weighted), "BDAC");
}

#[test]
fn a_group_shares_its_weight_and_stands_together() {
    let mut stage = stage(&[10, 30, 30, 60], 0.05);
    stage.actor('C').group = 1;
    stage.exclude('B');
    // B and C are one step of weight 30, which C alone keeps eligible.
    assert_eq!(stage.written(Strategy::Weighted), "ADBC");
    stage.exclude('C');
    assert_eq!(stage.tried(Strategy::Weighted), "AD");
}

#[test]
fn behind_the_drawn_step_tiers_keep_their_order() {
    let mut stage = stage(&[10, 20, 70, 30], 0.9);
    stage.config.composite_tiers = Some(crate::config::CompositeTiers {
        default_tier: "first".to_owned(),
        tiers: BTreeMap::new(),
    });
    assert_eq!(stage.written(Strategy::Weighted), "DABC");
}

#[test]
fn shares_are_those_of_the_weights() {
    let mut stage = stage(&[70, 20, 10], 0.0);
    let mut drawn = BTreeMap::new();
    for seed in 0..10_000 {
        stage.seed = seed;
        *drawn.entry(stage.written(Strategy::Weighted)).or_insert(0) += 1;
    }
    assert!((6_850..7_150).contains(&drawn["ABC"]), "{drawn:?}");
    assert!((1_880..2_120).contains(&drawn["BAC"]), "{drawn:?}");
    assert!((910..1_090).contains(&drawn["CAB"]), "{drawn:?}");
    assert_eq!(drawn.len(), 3);
}

#[test]
fn a_draw_is_in_force_for_as_many_requests_as_configured() {
    let mut stage = stage(&[70, 20, 10], 0.0);
    stage.config.sticky_weighted_limit = Some(4);
    let mut heads = String::new();
    for seed in 0..4_000 {
        stage.seed = seed;
        heads.push_str(&stage.heads(Strategy::Weighted, 1));
    }
    let draws: Vec<&[u8]> = heads.as_bytes().chunks(4).collect();
    for draw in &draws {
        assert!(draw.iter().all(|head| *head == draw[0]), "{draw:?}");
    }
    let of_a = draws.iter().filter(|draw| draw[0] == b'A').count();
    assert!((650..750).contains(&of_a), "{of_a} of 1000");
}

#[test]
fn a_draw_in_force_stands_whoever_else_is_excluded() {
    let mut stage = stage(&[70, 20, 10], 0.0);
    stage.config.sticky_weighted_limit = Some(2);
    let heads = |stage: &Stage| -> String {
        stage.set_turn(TurnPurpose::Weighted, 0);
        stage.heads(Strategy::Weighted, 400)
    };
    let before = heads(&stage);
    for excluded in ['A', 'B', 'C'] {
        stage.exclude(excluded);
        for (before, now) in before.chars().zip(heads(&stage).chars()) {
            if before == excluded {
                assert_ne!(now, excluded);
            } else {
                assert_eq!(now, before, "without {excluded}");
            }
        }
        stage.actor(excluded).eligible = true;
    }
}

#[test]
fn the_share_of_an_excluded_step_falls_to_the_others_by_weight() {
    let mut stage = stage(&[70, 20, 10], 0.0);
    stage.config.sticky_weighted_limit = Some(2);
    stage.exclude('A');
    let heads = stage.heads(Strategy::Weighted, 6_000);
    let of_b = heads.matches('B').count();
    assert!((3_800..4_200).contains(&of_b), "{of_b} of 6000");
}

#[test]
fn a_draw_in_force_ends_when_its_step_is_excluded() {
    let mut stage = stage(&[70, 20, 10], 0.0);
    stage.config.sticky_weighted_limit = Some(1_000);
    let head = stage.heads(Strategy::Weighted, 1).chars().next().unwrap();
    stage.exclude(head);
    let next = stage.tried(Strategy::Weighted);
    assert_eq!(next.len(), 2);
    assert!(!next.contains(head));
}
