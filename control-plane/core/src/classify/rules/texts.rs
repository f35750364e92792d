//! Texts to look for in an answer, all in one pass, without regard to case.
//!
//! A text is plain text: no character of it has a meaning, so no operator can write one that is slow to find.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, MatchKind};

/// Which text of [`Texts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextId(usize);

/// Collects texts; equal ones are kept once.
#[derive(Debug, Default)]
pub(super) struct TextList {
    texts: Vec<String>,
    known: BTreeMap<String, TextId>,
}

impl TextList {
    /// Adds a text.
    pub(super) fn add(&mut self, text: &str) -> TextId {
        let folded = fold(text);
        if let Some(id) = self.known.get(&folded) {
            return *id;
        }
        let id = TextId(self.texts.len());
        self.texts.push(folded.clone());
        self.known.insert(folded, id);
        id
    }

    /// Makes them ready to be looked for.
    pub(super) fn compile(self) -> Texts {
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(&self.texts)
            // Only texts of gigabytes are too many for an automaton; they are then looked for one by one.
            .ok();
        Texts {
            texts: self.texts,
            automaton,
        }
    }
}

/// Texts that can be looked for.
#[derive(Debug, Default)]
pub(super) struct Texts {
    texts: Vec<String>,
    automaton: Option<AhoCorasick>,
}

/// Which texts occur.
#[derive(Debug, Default)]
pub(super) struct Occurring(Vec<bool>);

impl Texts {
    /// There is nothing to look for.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Looks for all of them at once. The cost is linear in the length of what is searched.
    pub(super) fn find(&self, searched: &str) -> Occurring {
        let searched = fold(searched);
        let Some(automaton) = &self.automaton else {
            let texts = self.texts.iter();
            return Occurring(texts.map(|text| searched.contains(text.as_str())).collect());
        };
        let mut found = vec![false; self.texts.len()];
        let mut missing = found.len();
        for hit in automaton.find_overlapping_iter(&searched) {
            if let Some(seen @ false) = found.get_mut(hit.pattern().as_usize()) {
                *seen = true;
                missing = missing.saturating_sub(1);
                if missing == 0 {
                    break;
                }
            }
        }
        Occurring(found)
    }
}

impl Occurring {
    /// The text occurs.
    pub(super) fn has(&self, text: TextId) -> bool {
        self.0.get(text.0).copied().unwrap_or(false)
    }

    /// One of them occurs.
    pub(super) fn has_any(&self, texts: &[TextId]) -> bool {
        texts.iter().any(|text| self.has(*text))
    }
}

/// A text without regard to case. Going through upper case makes letters equal that have several lower-case forms,
/// such as the two sigmas.
pub(super) fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.chars()
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect()
}

impl PartialEq for Texts {
    /// The automaton is made of the texts.
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

impl Eq for Texts {}
