//! Which turns are continued, and how what follows is found.

use proptest::prelude::*;
use rstest::rstest;

use super::Joined::{Restart, Suffix};
use super::*;

#[rstest]
#[case::goes_on("The quick brown fox", "brown fox jumps", Suffix(" jumps"))]
#[case::begins_anew("The quick brown fox", "Hello world", Restart)]
#[case::all_of_it_again("The quick brown fox", "The quick brown fox jumps", Suffix(" jumps"))]
#[case::nothing_new("The quick brown fox", "brown fox", Suffix(""))]
#[case::nothing("The quick brown fox", "", Restart)]
#[case::after_nothing("", "Hello world", Suffix("Hello world"))]
#[case::eight_characters("abcdefgh", "abcdefgh!", Suffix("!"))]
#[case::seven_characters("abcdefg", "abcdefg!", Restart)]
#[case::eight_characters_of_three_bytes("一二三四五六七八", "一二三四五六七八九", Suffix("九"))]
#[case::seven_characters_of_three_bytes("一二三四五六七", "一二三四五六七八", Restart)]
#[case::the_longest_overlap_counts("abababababab", "abababababc", Suffix("c"))]
#[case::same_bytes_of_other_characters("x\u{e9}", "\u{a9}", Restart)]
fn vector_sessions_52_a_continuation_is_stitched_by_its_overlap(
    #[case] delivered: &str,
    #[case] new: &str,
    #[case] expected: Joined<'_>,
) {
    assert_eq!(join(delivered, new), expected);
}

#[test]
fn overlaps_of_more_than_512_characters_are_not_seen() {
    let numbers: String = (0..200).map(|number| format!("{number} ")).collect();
    let text: String = numbers.chars().take(513).collect();
    let (first, rest) = text.split_at(1);
    assert_eq!(join(rest, &format!("{rest}!")), Suffix("!"));
    assert_eq!(rest.chars().count(), MAX_OVERLAP_CHARS);
    assert_eq!(
        join(&format!("{first}{rest}"), &format!("{text}!")),
        Restart
    );
}

/// What a client saw, event by event.
fn turn(events: &str) -> Turn {
    let mut turn = Turn::default();
    for event in events.split_whitespace() {
        match event {
            "chunk" => turn.chunk(),
            "text" => turn.text("Once upon"),
            "empty" => turn.text(""),
            "tool" => turn.tool_call(),
            "reasoning" => turn.reasoning(),
            "choice" => turn.further_choice(),
            "done" => turn.done(),
            reason => turn.finish(reason),
        }
    }
    turn
}

#[rstest]
#[case::text("chunk text", true)]
#[case::nothing("", false)]
#[case::no_chat("text", false)]
#[case::only_a_role("chunk", false)]
#[case::only_empty_text("chunk empty", false)]
#[case::only_reasoning("chunk reasoning", false)]
#[case::reasoning_and_text("chunk reasoning text", true)]
#[case::text_and_a_tool("chunk text tool", false)]
#[case::a_tool("chunk tool", false)]
#[case::ended_for_a_tool("chunk text tool tool_calls", false)]
#[case::two_choices("chunk text choice", false)]
#[case::ended("chunk text stop", false)]
#[case::ended_and_closed("chunk text stop done", false)]
#[case::closed("chunk text done", false)]
#[case::cut_off_by_its_length("chunk text length", false)]
#[case::empty_stop("chunk reasoning stop", true)]
#[case::empty_stop_and_closed("chunk reasoning stop done", true)]
#[case::empty_stop_without_reasoning("chunk stop", false)]
#[case::empty_stop_with_a_tool("chunk reasoning tool stop", false)]
#[case::reasoning_and_length("chunk reasoning length", false)]
#[case::two_reasons("chunk reasoning length stop", false)]
#[case::two_reasons_the_other_way("chunk reasoning stop length", false)]
#[case::closed_without_a_reason("chunk reasoning done", false)]
fn which_turns_are_continued(#[case] events: &str, #[case] may: bool) {
    let turn = turn(events);
    for continued in 0..4 {
        assert_eq!(turn.may_continue(continued), may);
    }
    assert!(!turn.may_continue(4) && !turn.may_continue(u32::MAX));
}

#[test]
fn delivered_text_is_all_of_it_in_order() {
    let mut turn = turn("chunk");
    for delta in ["Once", " upon", "", " a time"] {
        turn.text(delta);
    }
    assert_eq!(turn.delivered(), "Once upon a time");
}

#[test]
fn a_turn_with_too_much_text_is_neither_kept_nor_continued() {
    let mut turn = turn("chunk");
    turn.text(&"x".repeat(MAX_CONTINUED_BYTES));
    assert!(turn.may_continue(0));
    turn.text("");
    assert!(turn.may_continue(0));
    turn.text("x");
    assert!(!turn.may_continue(0));
    assert_eq!((turn.delivered(), turn.text.capacity()), ("", 0));
    turn.text("x");
    assert!(!turn.may_continue(0));
    assert_eq!(turn.delivered(), "");
    // Nor is it taken for a turn without any.
    turn.reasoning();
    turn.finish("stop");
    assert!(!turn.may_continue(0));
}

/// The overlap as its definition says, by characters.
fn longest_overlap(delivered: &[char], new: &[char]) -> usize {
    (0..=MAX_OVERLAP_CHARS.min(new.len()).min(delivered.len()))
        .rev()
        .find(|length| delivered.ends_with(&new[..*length]))
        .unwrap_or(0)
}

proptest! {
    #[test]
    fn the_overlap_is_the_longest(delivered in "[ab你]{0,40}", new in "[ab你]{0,40}") {
        let (old, characters): (Vec<char>, Vec<char>) = (delivered.chars().collect(), new.chars().collect());
        let overlap = longest_overlap(&old, &characters);
        let suffix: String = characters[overlap..].iter().collect();
        let expected = if old.is_empty() || overlap >= MIN_OVERLAP_CHARS { Suffix(&suffix) } else { Restart };
        prop_assert_eq!(join(&delivered, &new), expected);
    }

    /// Of a text in which no part comes twice, nothing is lost and nothing doubled, wherever it broke and whatever is
    /// repeated.
    #[test]
    fn a_text_is_whole_again(from in 0_u32..60_000, cut in 600_usize..1_500, repeated in 8_usize..=512) {
        // Every character is another one.
        let text: Vec<char> = (0..1_600).filter_map(|index| char::from_u32(0x1_0000 + from + index)).collect();
        let delivered: String = text[..cut].iter().collect();
        let new: String = text[cut - repeated..].iter().collect();
        let Suffix(suffix) = join(&delivered, &new) else {
            panic!("{repeated} characters were not found");
        };
        let whole: String = text.iter().collect();
        prop_assert_eq!(format!("{delivered}{suffix}"), whole);
    }

    #[test]
    fn any_two_texts_are_joined_or_refused(delivered in ".{0,60}", new in ".{0,60}") {
        if let Suffix(suffix) = join(&delivered, &new) {
            prop_assert!(new.ends_with(suffix));
            let repeated = new.strip_suffix(suffix).unwrap();
            prop_assert!(delivered.is_empty() || delivered.ends_with(repeated));
        }
    }
}

#[rstest]
#[case::text("chunk text reasoning stop", true, Some("stop"))]
#[case::nothing_yet("chunk text", true, None)]
#[case::the_end_alone("chunk text done", true, None)]
#[case::a_tool_call("chunk text tool tool_calls", false, Some("tool_calls"))]
#[case::a_further_choice("chunk text choice length", false, Some("length"))]
#[case::two_reasons("chunk length stop", true, Some("length"))]
fn a_turn_tells_what_it_holds_and_how_it_ended(
    #[case] events: &str,
    #[case] is_plain: bool,
    #[case] finish_reason: Option<&str>,
) {
    let turn = turn(events);
    assert_eq!(turn.is_plain(), is_plain);
    assert_eq!(turn.finish_reason(), finish_reason);
    let has_ended = finish_reason.is_some() || events.contains("done");
    assert_eq!(turn.has_ended(), has_ended);
}

#[test]
fn a_reason_that_is_too_long_to_be_one_is_not_kept() {
    let mut turn = Turn::default();
    turn.finish(&"x".repeat(MAX_REASON_BYTES + 1));
    assert_eq!((turn.finish_reason(), turn.has_ended()), (None, true));
}
