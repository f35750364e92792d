//! What a member of the settings is: its name, its shape, and its bounds over the API and as stored.

/// A member and what may stand there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
}

/// What may stand at a member.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// A real boolean.
    Flag,
    /// A whole number.
    Whole(Bounds),
    /// A number from 0 to 1, fractions included.
    Share,
    /// A text. Its section's rules say which.
    Text,
    /// A list of whole numbers.
    Numbers { each: Bounds, most: usize },
    /// A list or map of entries. Each is judged by its type and by the rules of its section, so one that is no
    /// good can be told from the others.
    Entries,
    /// Members of its own.
    Members(&'static [Member]),
}

/// Smallest and largest value, both allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    api: (u64, u64),
    stored: (u64, u64),
}

/// Which bounds hold. What the API takes is always within what may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Of what people send.
    Api,
    /// Of what stands in the store.
    Stored,
}

impl Bounds {
    /// The same over the API and as stored.
    pub(super) const fn same(least: u64, most: u64) -> Self {
        Self {
            api: (least, most),
            stored: (least, most),
        }
    }

    /// More may be stored than the API takes.
    pub(super) const fn wider_stored(api: (u64, u64), stored: (u64, u64)) -> Self {
        Self { api, stored }
    }

    /// Smallest and largest.
    pub(super) const fn of(self, reach: Reach) -> (u64, u64) {
        match reach {
            Reach::Api => self.api,
            Reach::Stored => self.stored,
        }
    }

    /// Brings a number into the bounds of what is stored.
    pub(super) fn clamp(self, number: i128) -> u64 {
        let (least, most) = self.stored;
        u64::try_from(number.clamp(i128::from(least), i128::from(most))).unwrap_or(most)
    }
}

impl Member {
    pub(super) const fn flag(name: &'static str) -> Self {
        Self {
            name,
            shape: Shape::Flag,
        }
    }

    pub(super) const fn whole(name: &'static str, bounds: Bounds) -> Self {
        Self {
            name,
            shape: Shape::Whole(bounds),
        }
    }

    pub(super) const fn share(name: &'static str) -> Self {
        Self {
            name,
            shape: Shape::Share,
        }
    }

    pub(super) const fn text(name: &'static str) -> Self {
        Self {
            name,
            shape: Shape::Text,
        }
    }

    pub(super) const fn entries(name: &'static str) -> Self {
        Self {
            name,
            shape: Shape::Entries,
        }
    }

    pub(super) const fn members(name: &'static str, members: &'static [Member]) -> Self {
        Self {
            name,
            shape: Shape::Members(members),
        }
    }
}
