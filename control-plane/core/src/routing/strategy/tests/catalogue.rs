//! `cost-optimized` and `context-optimized` (`routing.md` §8.9, §8.16).

use rstest::rstest;

use super::*;

fn prices(input: f64, output: f64) -> ModelInfo {
    ModelInfo {
        input_price: Some(finite(input)),
        output_price: Some(finite(output)),
        ..ModelInfo::default()
    }
}

#[rstest]
#[case::vector_routing_v_co1(&[('A', 3.0, 1.0), ('B', 0.5, 1.0)], "BAC")]
#[case::vector_routing_v_co2(&[('A', 1.0, 1.0), ('B', 1.0, 1.0), ('C', 0.0, 1.0)], "CAB")]
#[case::vector_routing_v_co3(&[('A', 1.0, 100.0), ('B', 2.0, 2.0)], "ABC")]
#[case::no_price_is_known(&[], "ABC")]
fn the_cheapest_input_is_first(#[case] known: &[(char, f64, f64)], #[case] expected: &str) {
    let mut stage = Stage::of("ABC");
    for (letter, input, output) in known {
        stage.set_info(*letter, prices(*input, *output));
    }
    assert_eq!(stage.written(Strategy::CostOptimized), expected);
}

#[rstest]
#[case::asked_for(Some(true), &["premium"], "", "EC", "ABD")]
#[case::asked_for_among_others(Some(true), &["eu", "premium"], "", "EC", "ABD")]
#[case::not_asked_for(Some(true), &["eu"], "", "ABECD", "")]
#[case::not_switched_on(None, &["premium"], "", "ABECD", "")]
#[case::one_of_them_can_be_used(Some(true), &["premium"], "E", "EC", "ABD")]
#[case::none_of_them_can_be_used(Some(true), &["premium"], "CE", "ABECD", "")]
fn a_request_for_a_premium_model_gets_one_while_there_is_one(
    #[case] manifest_routing: Option<bool>,
    #[case] tags: &[&str],
    #[case] excluded: &str,
    #[case] usable: &str,
    #[case] ruled_out: &str,
) {
    let mut stage = Stage::of("ABCDE");
    stage.config.manifest_routing = manifest_routing;
    stage.facts.tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    stage.set_info('A', prices(1.0, 1.0));
    stage.set_info('B', prices(2.0, 1.0));
    for (letter, price) in [('C', 4.0), ('E', 3.0)] {
        let info = ModelInfo {
            premium: Some(true),
            ..prices(price, 1.0)
        };
        stage.set_info(letter, info);
    }
    for letter in excluded.chars() {
        stage.exclude(letter);
    }
    let ordered = stage
        .ask(|question| of(Strategy::CostOptimized).order(question))
        .unwrap();
    let (may, may_not) = ordered.order.split_at(ordered.usable);
    assert_eq!(stage.names(may), usable);
    assert_eq!(stage.names(may_not), ruled_out);
}

#[test]
fn vector_routing_v_cx1() {
    let mut stage = Stage::of("ABC");
    assert_eq!(stage.written(Strategy::ContextOptimized), "ABC");
    for (letter, tokens) in [('A', 128_000), ('B', 1_000_000)] {
        let info = ModelInfo {
            context_window: Some(tokens),
            ..ModelInfo::default()
        };
        stage.set_info(letter, info);
    }
    assert_eq!(stage.written(Strategy::ContextOptimized), "BAC");
}
