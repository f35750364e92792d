//! Ends streams that go on without getting anywhere (`sessions-and-streams.md` §4.2). Off unless switched on.
//!
//! Silence is the idle timer's business: it sees that nothing useful comes. It does not see that too little comes, such
//! as a word a minute from an upstream that is overloaded; the client waits, and no limit passes for hours. This counts
//! the bytes of text within a sliding window and ends the attempt when they are too few.
//!
//! **When it judges.** Only when a chunk arrives, and only once warm-up and a whole window have passed since the first
//! one. Tool calls and reasoning are no text, and may take as long as they like: while they are in flight nothing is
//! judged, and afterwards nothing before another whole window has passed, for the window that came before holds no text
//! for a good reason. They are over when text comes or their own end is told.
//!
//! **What it finds.** Too slow is a window without any text, or one with at least the bytes that can be measured at all
//! and a rate below the least. A few bytes, more than none and fewer than can be measured, are not judged.
//!
//! **What it ignores.** Heartbeats, comments, usage and other events without text: they count nothing and prevent
//! nothing.

use std::collections::VecDeque;

/// What of an event the watchdog looks at (`sessions-and-streams.md` §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It carries text for the reader: so many bytes of UTF-8. None at all is [`Self::Nothing`].
    Useful {
        /// Length of the text.
        bytes: u64,
    },
    /// A tool call or reasoning is in flight. Text in the same event does not count.
    Protected,
    /// A tool call or reasoning is complete.
    ProtectedEnds,
    /// Anything else.
    Nothing,
}

/// What a watchdog runs on. Bounds are those of the settings; any other values are harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchdogLimits {
    /// From the first chunk, in ms; nothing is judged before this and a window have passed.
    pub warmup_ms: u64,
    /// Over which time bytes are counted, in ms.
    pub window_ms: u64,
    /// Fewer bytes a second are too slow.
    pub min_useful_bytes_per_second: u64,
    /// A window with some bytes, but fewer than this, is not judged.
    pub min_useful_bytes: u64,
}

/// A stream is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} useful bytes within {window_ms} ms")]
pub struct TooSlow {
    /// Useful bytes in the window.
    pub bytes: u64,
    /// Length of the window.
    pub window_ms: u64,
}

/// Most moments of which the bytes are kept apart; beyond, moments that lie close to each other are one.
const MAX_SAMPLES: u64 = 1_024;

/// Watches one attempt. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Watchdog {
    limits: WatchdogLimits,
    /// Set by the first chunk.
    watch: Option<Watch>,
    /// Bytes at the moments they came, oldest first.
    samples: VecDeque<Sample>,
    /// Sum of the samples.
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Watch {
    began_ms: u64,
    /// The newest moment that was told. Time never goes back here.
    now_ms: u64,
    /// From here on a whole window is needed before anything is judged.
    judged_from_ms: u64,
    is_protected: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ms: u64,
    bytes: u64,
}

impl Watchdog {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(limits: WatchdogLimits) -> Self {
        Self {
            limits,
            watch: None,
            samples: VecDeque::new(),
            bytes: 0,
        }
    }

    /// A chunk arrived and completed these events, in order; often it completes none. `now_ms` is monotonic, of any
    /// origin, and the first call is the beginning of the warm-up.
    ///
    /// # Errors
    /// The stream is too slow as of now.
    pub fn sees(
        &mut self,
        events: impl IntoIterator<Item = Progress>,
        now_ms: u64,
    ) -> Result<(), TooSlow> {
        let mut watch = self.watch.unwrap_or_else(|| Watch {
            began_ms: now_ms,
            now_ms,
            judged_from_ms: now_ms.saturating_add(self.limits.warmup_ms),
            is_protected: false,
        });
        watch.now_ms = watch.now_ms.max(now_ms);
        for event in events {
            match event {
                Progress::Nothing | Progress::Useful { bytes: 0 } => {}
                Progress::Protected => watch.is_protected = true,
                Progress::ProtectedEnds => watch.unprotect(),
                Progress::Useful { bytes } => {
                    watch.unprotect();
                    self.count(bytes, &watch);
                }
            }
        }
        self.watch = Some(watch);
        self.forget(watch.now_ms);
        self.judge(&watch)
    }

    fn count(&mut self, bytes: u64, watch: &Watch) {
        self.bytes = self.bytes.saturating_add(bytes);
        let at_ms = watch.now_ms;
        let slot_ms = self.slot_ms();
        let slot = |at_ms: u64| at_ms.saturating_sub(watch.began_ms).checked_div(slot_ms);
        match self.samples.back_mut() {
            // The later moment keeps them longer: what is inexact is in favour of the stream.
            Some(last) if slot(last.at_ms) == slot(at_ms) => {
                last.at_ms = at_ms;
                last.bytes = last.bytes.saturating_add(bytes);
            }
            _ => self.samples.push_back(Sample { at_ms, bytes }),
        }
    }

    /// Moments that lie within so many ms are one. 1 as long as [`Self::forget`] alone keeps the samples few.
    fn slot_ms(&self) -> u64 {
        if self.enough() <= MAX_SAMPLES {
            1
        } else {
            self.limits.window_ms.div_ceil(MAX_SAMPLES).max(1)
        }
    }

    /// Drops what is older than the window, and what makes no difference: while enough bytes came later, a sample can
    /// leave the window only before they do, and until then there is enough without it.
    fn forget(&mut self, now_ms: u64) {
        let (oldest_ms, enough) = (now_ms.saturating_sub(self.limits.window_ms), self.enough());
        while let Some(oldest) = self.samples.front() {
            let others = self.bytes.saturating_sub(oldest.bytes);
            if oldest.at_ms >= oldest_ms && others < enough {
                break;
            }
            self.bytes = others;
            self.samples.pop_front();
        }
    }

    /// With so many bytes in a window a stream is fast enough and measurable.
    fn enough(&self) -> u64 {
        let limits = &self.limits;
        let rate = u128::from(limits.min_useful_bytes_per_second);
        let fast = rate
            .saturating_mul(u128::from(limits.window_ms))
            .div_ceil(1_000);
        u64::try_from(fast)
            .unwrap_or(u64::MAX)
            .max(limits.min_useful_bytes)
    }

    fn judge(&self, watch: &Watch) -> Result<(), TooSlow> {
        let WatchdogLimits {
            window_ms,
            min_useful_bytes_per_second,
            min_useful_bytes,
            ..
        } = self.limits;
        let is_due = watch.now_ms >= watch.judged_from_ms.saturating_add(window_ms);
        let is_measurable = self.bytes == 0 || self.bytes >= min_useful_bytes;
        let least = u128::from(min_useful_bytes_per_second).saturating_mul(u128::from(window_ms));
        let is_slow = u128::from(self.bytes).saturating_mul(1_000) < least;
        if is_due && !watch.is_protected && is_measurable && is_slow {
            return Err(TooSlow {
                bytes: self.bytes,
                window_ms,
            });
        }
        Ok(())
    }
}

impl Watch {
    fn unprotect(&mut self) {
        if self.is_protected {
            self.is_protected = false;
            self.judged_from_ms = self.judged_from_ms.max(self.now_ms);
        }
    }
}

#[cfg(test)]
mod tests;
