//! Collects what is wrong with a document, up to a limit: a hostile document must not make a larger answer
//! than itself.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::Violation;

impl Violation {
    /// What is wrong, and where.
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

/// Most violations that are told; the rest is counted in one more.
pub const MAX_VIOLATIONS: usize = 100;

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    told: Vec<Violation>,
    untold: usize,
}

impl Violations {
    /// Adds one.
    pub(crate) fn push(&mut self, field: impl Into<String>, message: impl Into<String>) {
        if self.told.len() < MAX_VIOLATIONS {
            self.told.push(Violation::new(field, message));
        } else {
            self.untold = self.untold.saturating_add(1);
        }
    }

    /// Adds one when the value is out of bounds.
    pub(crate) fn within<T: PartialOrd + Display>(
        &mut self,
        field: impl Into<String>,
        value: T,
        bounds: &RangeInclusive<T>,
    ) {
        if !bounds.contains(&value) {
            let message = format!(
                "must be between {} and {}, is {value}",
                bounds.start(),
                bounds.end()
            );
            self.push(field, message);
        }
    }

    /// Adds one when a list has more entries than the limit. Returns whether it has not, so that a list far
    /// too long is not walked.
    pub(crate) fn at_most(
        &mut self,
        field: impl Into<String>,
        entries: usize,
        limit: usize,
    ) -> bool {
        let fits = entries <= limit;
        if !fits {
            self.push(
                field,
                format!("must not have more than {limit} entries, has {entries}"),
            );
        }
        fits
    }

    /// How many were found, told or not.
    pub(crate) fn len(&self) -> usize {
        self.told.len().saturating_add(self.untold)
    }

    /// Nothing is wrong so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds all of another collection.
    pub(crate) fn extend(&mut self, others: Self) {
        self.untold = self.untold.saturating_add(others.untold);
        for other in others.told {
            self.push(other.field, other.message);
        }
    }

    /// Everything found, in order; empty when nothing is wrong.
    pub(crate) fn into_vec(mut self) -> Vec<Violation> {
        if self.untold > 0 {
            self.told.push(Violation {
                field: String::new(),
                message: format!("{} more violations are not listed", self.untold),
            });
        }
        self.told
    }
}
