//! Finds the words of upstreams in a text, all in one pass.
//!
//! Every word of [`PHRASES`] and [`MARKERS`] is in one automaton. A match costs a look-up and one comparison per
//! phrase that ends with the word: whether its first part ended close enough before. So the cost is linear in
//! the text whatever the text is; what is kept of it is one bit per family, the last end of each word and the
//! first [`MAX_MARKERS`] markers.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use super::phrases::{Family, MARKERS, Marker, PHRASES, Pattern};

/// Most markers of one text that are looked at. An honest text has one or two.
const MAX_MARKERS: usize = 16;

/// What was found in a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    families: u64,
    /// Markers and where each ends, in the order of the text.
    pub(super) markers: Vec<(Marker, usize)>,
}

impl Found {
    /// Looks through a text.
    pub(super) fn of(text: &str) -> Self {
        INDEX.find(text)
    }

    /// The text says this.
    pub(super) fn has(&self, family: Family) -> bool {
        self.families & bit(family) != 0
    }
}

fn bit(family: Family) -> u64 {
    1 << family as u32
}

/// Builds the index, if it is not there yet.
pub(super) fn prepare() {
    LazyLock::force(&INDEX);
}

static INDEX: LazyLock<Index> = LazyLock::new(Index::new);

struct Index {
    automaton: AhoCorasick,
    /// By number of the word in the automaton.
    words: Vec<Word>,
    /// Words that together mean families.
    together: Vec<(Vec<usize>, u64)>,
}

#[derive(Default)]
struct Word {
    text: &'static str,
    /// What the word means alone.
    families: u64,
    /// What it means after other words.
    after: Vec<After>,
    marker: Option<Marker>,
}

struct After {
    first: usize,
    gap: usize,
    families: u64,
}

impl Index {
    #[expect(
        clippy::expect_used,
        reason = "the words are constants, and every test of classification builds this"
    )]
    fn new() -> Self {
        let mut words = Words::default();
        let mut together = Vec::new();
        for (family, patterns) in PHRASES {
            let families = bit(*family);
            for pattern in *patterns {
                match *pattern {
                    Pattern::Words(text) => words.word(text).families |= families,
                    Pattern::Then(first, second, gap) => words.pair(first, second, gap, families),
                    Pattern::Near(one, other, gap) => {
                        words.pair(one, other, gap, families);
                        words.pair(other, one, gap, families);
                    }
                    Pattern::All(texts) => {
                        let numbers = texts.iter().map(|text| words.number(text)).collect();
                        together.push((numbers, families));
                    }
                }
            }
        }
        for (text, marker) in MARKERS {
            words.word(text).marker = Some(*marker);
        }
        let automaton = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(words.0.iter().map(|word| word.text))
            .expect("a small set of constant words fits an automaton");
        Self {
            automaton,
            words: words.0,
            together,
        }
    }

    fn find(&self, text: &str) -> Found {
        let mut found = Found::default();
        // A word cannot end at 0, so 0 stands for a word that has not been seen.
        let mut ends = vec![0_usize; self.words.len()];
        for hit in self.automaton.find_overlapping_iter(text) {
            let number = hit.pattern().as_usize();
            let Some(word) = self.words.get(number) else {
                continue;
            };
            found.families |= word.families;
            for after in &word.after {
                let first_end = ends.get(after.first).copied().unwrap_or(0);
                if first_end > 0 && hit.start().saturating_sub(first_end) <= after.gap {
                    found.families |= after.families;
                }
            }
            if let Some(marker) = word.marker
                && found.markers.len() < MAX_MARKERS
            {
                found.markers.push((marker, hit.end()));
            }
            if let Some(end) = ends.get_mut(number) {
                *end = hit.end();
            }
        }
        for (numbers, families) in &self.together {
            let seen = |number: &usize| ends.get(*number).is_some_and(|end| *end > 0);
            if numbers.iter().all(seen) {
                found.families |= families;
            }
        }
        found
    }
}

/// The words while the index is built, each once.
#[derive(Default)]
struct Words(Vec<Word>);

impl Words {
    fn number(&mut self, text: &'static str) -> usize {
        let known = self.0.iter().position(|word| word.text == text);
        known.unwrap_or_else(|| {
            self.0.push(Word {
                text,
                ..Word::default()
            });
            self.0.len().saturating_sub(1)
        })
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "the number was handed out just before; no input is involved"
    )]
    fn word(&mut self, text: &'static str) -> &mut Word {
        let number = self.number(text);
        &mut self.0[number]
    }

    fn pair(&mut self, first: &'static str, second: &'static str, gap: usize, families: u64) {
        let first = self.number(first);
        self.word(second).after.push(After {
            first,
            gap,
            families,
        });
    }
}

#[cfg(test)]
mod tests;
