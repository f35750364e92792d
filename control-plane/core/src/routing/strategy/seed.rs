//! Chance that belongs to a combo, or to a provider's accounts, and a number: the same in every replica that has the same
//! configuration.

use crate::hash;
use crate::random::Random;

use super::Scope;

/// What such chance is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed(u64);

impl Seed {
    /// The seed of a combo or of a provider's accounts.
    pub(super) fn of(scope: &Scope) -> Self {
        let (kind, name) = match scope {
            Scope::Combo(combo) => (0, combo.as_str()),
            Scope::Accounts(provider) => (1, provider.as_str()),
        };
        Self(hash::EMPTY).with_number(kind).with(name)
    }

    /// Adds a text.
    pub(super) fn with(self, text: &str) -> Self {
        Self(hash::extend(self.0, text.as_bytes()))
    }

    /// Adds a set of texts, in whatever order they come.
    pub(super) fn with_set<'a>(self, texts: impl Iterator<Item = &'a str>) -> Self {
        let sum = texts.fold(0_u64, |sum, text| {
            sum.wrapping_add(Self(hash::EMPTY).with(text).random().next_u64())
        });
        self.with_number(sum)
    }

    /// Adds a number.
    pub(super) fn with_number(self, number: u64) -> Self {
        Self(hash::extend(self.0, &number.to_le_bytes()))
    }

    /// The random numbers of this seed.
    pub(super) fn random(self) -> Random {
        Random::new(self.0)
    }
}
