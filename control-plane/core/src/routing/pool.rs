//! The targets that a request may use, before they are ordered: those of its combo, in the combo's order.
//!
//! The list depends on the configuration alone and is made when that is applied, so decisions borrow it.

use std::borrow::Cow;

use crate::config::{ComboEntry, ComboTarget, Unit};

/// Targets, and what the strategy orders where that is not each target by itself.
#[derive(Debug)]
pub(super) struct Pool<'a> {
    pub(super) targets: Cow<'a, [ComboTarget]>,
    pub(super) units: Cow<'a, [Unit]>,
}

/// The targets of a combo.
pub(super) fn of_combo(entry: &ComboEntry) -> Pool<'_> {
    Pool {
        targets: Cow::Borrowed(&entry.targets),
        units: Cow::Borrowed(&entry.units),
    }
}
