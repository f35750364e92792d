//! One pass finds what many passes would.

use proptest::prelude::*;

use super::super::phrases::{Family, MARKERS, PHRASES, Pattern};
use super::*;

/// The same by looking for every pattern on its own.
fn says(text: &str, pattern: Pattern) -> bool {
    let text = text.to_ascii_lowercase();
    let follows = |first: &str, second: &str, gap: usize| {
        text.match_indices(first).any(|(start, _)| {
            let end = start + first.len();
            text.match_indices(second).any(|(second_start, _)| {
                second_start + second.len() > end && second_start.saturating_sub(end) <= gap
            })
        })
    };
    match pattern {
        Pattern::Words(words) => text.contains(words),
        Pattern::Then(first, second, gap) => follows(first, second, gap),
        Pattern::Near(one, other, gap) => follows(one, other, gap) || follows(other, one, gap),
        Pattern::All(words) => words.iter().all(|word| text.contains(word)),
    }
}

fn parts(pattern: Pattern) -> Vec<&'static str> {
    match pattern {
        Pattern::Words(words) => vec![words],
        Pattern::Then(one, other, _) | Pattern::Near(one, other, _) => vec![one, other],
        Pattern::All(words) => words.to_vec(),
    }
}

fn patterns() -> impl Iterator<Item = (Family, Pattern)> {
    PHRASES
        .iter()
        .flat_map(|(family, patterns)| patterns.iter().map(|pattern| (*family, *pattern)))
}

#[test]
fn every_phrase_is_found_alone() {
    for (family, pattern) in patterns() {
        let text = parts(pattern).join(" ");
        assert!(Found::of(&text).has(family), "{family:?}: {text}");
        assert!(Found::of(&text.to_ascii_uppercase()).has(family));
    }
    for (text, marker) in MARKERS {
        let text = format!("It {text} then");
        let end = text.len() - " then".len();
        assert_eq!(Found::of(&text).markers, [(*marker, end)]);
    }
}

/// What the index relies on, and what a reviewer of the table would have to check by eye.
#[test]
fn the_table_is_sound() {
    let mut families: Vec<_> = PHRASES.iter().map(|(family, _)| *family as u32).collect();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), PHRASES.len(), "a family has one row");
    assert!(families.iter().all(|family| *family < u64::BITS));
    for (family, pattern) in patterns() {
        for part in parts(pattern) {
            assert_eq!(part, part.to_lowercase(), "{family:?}");
            assert!(part.len() > 2, "{family:?}: too short to mean anything");
        }
        if let Pattern::Then(one, other, _) | Pattern::Near(one, other, _) = pattern {
            assert!(
                !one.contains(other) && !other.contains(one),
                "{family:?}: a part contains the other, so it would follow itself"
            );
        }
    }
}

#[test]
fn the_gap_is_counted_exactly() {
    let apart = |gap: usize| format!("max{}token", "_".repeat(gap));
    assert!(Found::of(&apart(40)).has(Family::ContextOverflow));
    assert!(!Found::of(&apart(41)).has(Family::ContextOverflow));
    assert!(
        !Found::of("token max").has(Family::ContextOverflow),
        "order"
    );
}

#[test]
fn a_text_of_markers_keeps_a_bounded_number() {
    let found = Found::of(&"try again in ".repeat(1_000));
    assert_eq!(found.markers.len(), MAX_MARKERS);
}

/// Texts made of the words themselves, of halves of them and of filling.
fn text() -> impl Strategy<Value = String> {
    let words: Vec<String> = patterns()
        .flat_map(|(_, pattern)| parts(pattern))
        .flat_map(|part| {
            let (head, tail) = part.split_at(part.floor_char_boundary(part.len() / 2));
            [
                part.to_owned(),
                part.to_uppercase(),
                tail.to_owned(),
                head.to_owned(),
            ]
        })
        .collect();
    let piece = prop_oneof![
        4 => proptest::sample::select(words),
        2 => "[ _.]{0,30}",
        1 => "\\PC{0,20}",
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn one_pass_finds_what_many_find(text in text()) {
        let found = Found::of(&text);
        for (family, patterns) in PHRASES {
            let expected = patterns.iter().any(|pattern| says(&text, *pattern));
            prop_assert_eq!(found.has(*family), expected, "{:?} in {:?}", family, text);
        }
    }
}
