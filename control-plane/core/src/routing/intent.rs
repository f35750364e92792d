//! What a request is about, told by words of its last user message (`routing.md` §9.1).
//!
//! A guess that costs a few microseconds, made for every request of `auto`: it looks at the first [`LOOKED_AT_BYTES`] of
//! the text only, and counts each word once, in whatever form it comes. One word that nearly always means it, or two that often do, decide. Of both
//! kinds the stronger wins, and code wins a tie: who asks why code fails wants code.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use super::Intent;

/// How much of a text is looked at, in bytes.
pub const LOOKED_AT_BYTES: usize = 4_096;

/// Points that decide.
const ENOUGH: u32 = 2;

/// Words that alone say that code is wanted.
const CODE: &[&str] = &[
    "```",
    "codebase",
    "compile error",
    "compiler",
    "css",
    "debug",
    "def __init__",
    "django",
    "docker",
    "golang",
    "html",
    "javascript",
    "json schema",
    "kubernetes",
    "linter",
    "mypy",
    "nodejs",
    "npm",
    "nullpointerexception",
    "postgres",
    "programming",
    "pull request",
    "pytest",
    "python",
    "refactor",
    "regex",
    "segfault",
    "shell script",
    "source code",
    "sql",
    "stack trace|stacktrace",
    "syntax error",
    "traceback",
    "typescript",
    "unit test|unit tests",
];

/// Words that say so together with another one.
const MAYBE_CODE: &[&str] = &[
    "algorithm",
    "api",
    "array",
    "bug",
    "class",
    "code",
    "compile",
    "const",
    "crash",
    "database",
    "deploy",
    "exception",
    "fix",
    "function|functions",
    "git",
    "implement",
    "import",
    "library",
    "loop",
    "method",
    "parser",
    "program",
    "query",
    "react",
    "return",
    "rust",
    "script",
    "server",
    "struct",
    "test|tests",
    "variable",
];

/// Words that alone say that reasoning is wanted.
const REASONING: &[&str] = &[
    "analyse|analyze|analysis",
    "chain of thought",
    "counterexample",
    "deduce",
    "derive",
    "hypothesis",
    "infer",
    "logical",
    "lemma",
    "pros and cons",
    "proof",
    "prove",
    "root cause",
    "step by step",
    "theorem",
    "think through",
    "trade-off|trade-offs|tradeoff|tradeoffs",
];

/// Words that say so together with another one.
const MAYBE_REASONING: &[&str] = &[
    "argue",
    "assess",
    "calculate",
    "compare",
    "conclude",
    "consequences",
    "criteria",
    "critique",
    "equation",
    "estimate",
    "evaluate",
    "evidence",
    "explain",
    "implications",
    "interpret",
    "justify",
    "probability",
    "reason|reasoning",
    "solve",
    "strategy",
    "why",
];

/// Words, with their forms apart by `|`, what they mean and how much they count.
const WORDS: [(&[&str], Intent, u32); 4] = [
    (CODE, Intent::Coding, ENOUGH),
    (MAYBE_CODE, Intent::Coding, 1),
    (REASONING, Intent::Analysis, ENOUGH),
    (MAYBE_REASONING, Intent::Analysis, 1),
];

/// What the text is about.
#[must_use]
pub fn classify(text: &str) -> Intent {
    let bytes = text.as_bytes();
    INDEX.classify(bytes.get(..LOOKED_AT_BYTES).unwrap_or(bytes))
}

static INDEX: LazyLock<Index> = LazyLock::new(Index::new);

struct Index {
    automaton: AhoCorasick,
    /// Number of the word, by the number of its form in the automaton.
    words: Vec<usize>,
    /// By number of the word.
    meanings: Vec<(Intent, u32)>,
}

impl Index {
    #[expect(
        clippy::expect_used,
        reason = "the words are constants, and every test of this builds the automaton"
    )]
    fn new() -> Self {
        let forms = || {
            let words = WORDS.iter().flat_map(|(words, ..)| *words).enumerate();
            words.flat_map(|(number, word)| word.split('|').map(move |form| (number, form)))
        };
        let automaton = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(forms().map(|(_, form)| form))
            .expect("a small set of constant words fits an automaton");
        let meanings = WORDS
            .iter()
            .flat_map(|(words, intent, points)| words.iter().map(|_| (*intent, *points)))
            .collect();
        Self {
            automaton,
            words: forms().map(|(number, _)| number).collect(),
            meanings,
        }
    }

    fn classify(&self, text: &[u8]) -> Intent {
        let mut seen = vec![false; self.meanings.len()];
        let (mut coding, mut analysis) = (0_u32, 0_u32);
        for hit in self.automaton.find_overlapping_iter(text) {
            let Some(&number) = self.words.get(hit.pattern().as_usize()) else {
                continue;
            };
            let Some(seen) = seen.get_mut(number) else {
                continue;
            };
            if *seen || !stands_alone(text, hit.start(), hit.end()) {
                continue;
            }
            *seen = true;
            match self.meanings.get(number) {
                Some((Intent::Coding, points)) => coding = coding.saturating_add(*points),
                Some((Intent::Analysis, points)) => analysis = analysis.saturating_add(*points),
                Some((Intent::General, _)) | None => {}
            }
        }
        if coding >= ENOUGH && coding >= analysis {
            Intent::Coding
        } else if analysis >= ENOUGH {
            Intent::Analysis
        } else {
            Intent::General
        }
    }
}

/// The match is not a piece of a longer word. One that neither begins nor ends with a letter stands alone anywhere.
fn stands_alone(text: &[u8], start: usize, end: usize) -> bool {
    let at = |position: Option<usize>| {
        position
            .and_then(|position| text.get(position))
            .is_some_and(|byte| is_of_word(*byte))
    };
    let begins_within = at(Some(start)) && at(start.checked_sub(1));
    let ends_within = at(end.checked_sub(1)) && at(Some(end));
    !begins_within && !ends_within
}

/// Letters of other scripts are more than one byte, all of them beyond ASCII.
fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::one_sure_word("Please refactor this.", Intent::Coding)]
    #[case::any_case("WRITE PYTHON", Intent::Coding)]
    #[case::fenced("look: ```\nx = 1\n```", Intent::Coding)]
    #[case::two_likely_words("the function has a bug", Intent::Coding)]
    #[case::one_likely_word("what is the function of the liver?", Intent::General)]
    #[case::the_same_word_twice("a class of its own, a class apart", Intent::General)]
    #[case::two_forms_of_a_word("a function of functions", Intent::General)]
    #[case::tests_of_a_test("the test of all tests", Intent::General)]
    #[case::words_of_many_meanings("how does rust form on iron?", Intent::General)]
    #[case::they_count_beside_others("why does my rust program react so slowly?", Intent::Coding)]
    #[case::a_reasoning_about_a_reason("the reasoning behind the reason", Intent::General)]
    #[case::reasoning("Prove that there is no largest prime.", Intent::Analysis)]
    #[case::several_words("think it over step by step", Intent::Analysis)]
    #[case::two_likely_reasons("Explain why the sky is blue", Intent::Analysis)]
    #[case::one_likely_reason("why not?", Intent::General)]
    #[case::code_wins_a_tie("analyse this stack trace", Intent::Coding)]
    #[case::more_reasoning("prove the theorem about regex", Intent::Analysis)]
    #[case::small_talk("Hello, how are you today?", Intent::General)]
    #[case::piece_of_a_word("rustpython, digitally approved", Intent::General)]
    #[case::piece_of_a_name("my_python_file", Intent::General)]
    #[case::letters_beyond_ascii("éprove", Intent::General)]
    #[case::punctuation("(python)", Intent::Coding)]
    #[case::nothing("", Intent::General)]
    fn words_tell_what_is_wanted(#[case] text: &str, #[case] expected: Intent) {
        assert_eq!(classify(text), expected);
    }

    #[test]
    fn only_the_beginning_is_looked_at() {
        let at_the_end = |length: usize| format!("{:>length$}", "python");
        assert_eq!(classify(&at_the_end(LOOKED_AT_BYTES)), Intent::Coding);
        assert_eq!(classify(&at_the_end(LOOKED_AT_BYTES + 1)), Intent::General);
    }

    #[test]
    fn every_word_is_listed_once_and_is_lower_case() {
        let mut words: Vec<&str> = WORDS
            .iter()
            .flat_map(|(words, ..)| *words)
            .flat_map(|word| word.split('|'))
            .collect();
        words.sort_unstable();
        let count = words.len();
        words.dedup();
        assert_eq!(words.len(), count);
        assert!(words.iter().all(|word| *word == word.to_lowercase()));
    }

    proptest! {
        #[test]
        fn any_text_has_an_intent(text in "\\PC{0,200}", words in proptest::sample::subsequence(CODE, 0..3)) {
            let forms: Vec<&str> = words.iter().flat_map(|word| word.split('|')).collect();
            let text = format!("{text} {}", forms.join(" "));
            let expected = !words.is_empty();
            prop_assert!(!expected || classify(&text) != Intent::General);
        }
    }
}
