//! Patterns over names: `*` stands for any text, `?` for any one character.

use std::str::Chars;

/// Whether the whole text fits the pattern. Takes at most as many steps as the two are long, multiplied.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Behind the last star, and the text from which that is tried.
    let mut star: Option<(Chars<'_>, Chars<'_>)> = None;
    loop {
        let (mut wanted, mut found) = (pattern.clone(), text.clone());
        match (wanted.next(), found.next()) {
            (Some('*'), _) => {
                star = Some((wanted.clone(), text.clone()));
                pattern = wanted;
            }
            (None, None) => return true,
            (Some(one), Some(other)) if one == '?' || one == other => {
                (pattern, text) = (wanted, found);
            }
            (_, None) => return false,
            (_, Some(_)) => {
                let Some((behind, from)) = &mut star else {
                    return false;
                };
                // The star takes one character more.
                from.next();
                (pattern, text) = (behind.clone(), from.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("*", "", true)]
    #[case("*", "gpt-4", true)]
    #[case("gpt-4*", "gpt-4o", true)]
    #[case("gpt-4*", "gpt-3", false)]
    #[case("*-mini", "gpt-4o-mini-mini", true)]
    #[case("*-mini", "gpt-4o-mini-x", false)]
    #[case("a*b*c", "aXbXbXc", true)]
    #[case("a*b*c", "aXcXb", false)]
    #[case("g?t", "gpt", true)]
    #[case("g?t", "gt", false)]
    #[case("g?t", "g\u{fc}t", true)]
    #[case("gpt", "gpt", true)]
    #[case("gpt", "gpts", false)]
    #[case("", "", true)]
    #[case("", "a", false)]
    #[case("**", "a", true)]
    fn a_pattern_fits(#[case] pattern: &str, #[case] text: &str, #[case] fits: bool) {
        assert_eq!(matches(pattern, text), fits);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_stars_replace_fits(parts in prop::collection::vec("[a-c]{0,3}", 1..5), fill in "[a-c]{0,4}") {
            prop_assert!(matches(&parts.join("*"), &parts.join(&fill)));
        }

        #[test]
        fn a_name_fits_itself_alone(one in "[a-c]{0,4}", other in "[a-c]{0,4}") {
            prop_assert_eq!(matches(&one, &other), one == other);
        }
    }
}
