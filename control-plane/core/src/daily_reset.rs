//! When the quotas of a day begin anew (`failure-state.md` §7.2, decision 22).
//!
//! On a fleet "midnight" must not be some machine's: it is an hour of a named zone's clock, UTC midnight where
//! nobody says otherwise. The zones are compiled in, so every replica answers the same and nothing is read.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use thiserror::Error;

use crate::time::Timestamp;

/// Longest wait for a reset, in ms: what is further away is a day of 25 hours, or a clock that was set.
const MAX_MS: u64 = 86_400_000;
/// Longest name of a zone, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The hour of a zone's clock at which daily quotas begin anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DailyReset {
    zone: TimeZone,
    hour: i8,
    stated: bool,
}

/// What is wrong with a stated reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DailyResetError {
    /// The zone is not in the IANA database.
    #[error("must be a zone of the IANA database, such as `UTC` or `Asia/Shanghai`")]
    UnknownZone,
    /// There is no such hour.
    #[error("must be between 0 and 23")]
    UnknownHour,
}

impl Default for DailyReset {
    /// UTC midnight, stated by nobody.
    fn default() -> Self {
        Self {
            zone: TimeZone::UTC,
            hour: 0,
            stated: false,
        }
    }
}

impl DailyReset {
    /// A reset that an operator states: an IANA zone and the hour of its clock, 0 to 23.
    ///
    /// # Errors
    /// When there is no such zone or hour.
    pub fn stated(zone: &str, hour: u8) -> Result<Self, DailyResetError> {
        let known = |zone: &str| TimeZoneDatabase::bundled().get(zone).ok();
        let zone = Some(zone)
            .filter(|zone| zone.len() <= MAX_NAME_BYTES)
            .and_then(known)
            .ok_or(DailyResetError::UnknownZone)?;
        let hour = i8::try_from(hour)
            .ok()
            .filter(|hour| *hour < 24)
            .ok_or(DailyResetError::UnknownHour)?;
        Ok(Self {
            zone,
            hour,
            stated: true,
        })
    }

    /// Whether an operator stated it; a guess is not good enough for every quota (§7.2, TPD).
    #[must_use]
    pub fn is_stated(&self) -> bool {
        self.stated
    }

    /// How long from `at` until the next reset, in ms: at least 1 and at most a day. An hour that a change of the
    /// clock leaves out is the first moment after it; one that comes twice is its first time.
    #[must_use]
    pub fn ms_until(&self, at: Timestamp) -> u64 {
        let next = self.next_after(at);
        let wait_ms = next.map_or(0, |next| next.remaining_ms(at));
        if wait_ms == 0 {
            MAX_MS
        } else {
            wait_ms.min(MAX_MS)
        }
    }

    fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        let now = jiff::Timestamp::from_millisecond(i64::try_from(at.0).ok()?).ok()?;
        let today = self.zone.to_datetime(now).date();
        [Some(today), today.tomorrow().ok()]
            .into_iter()
            .flatten()
            .filter_map(|day| {
                let reset = self.zone.to_timestamp(day.at(self.hour, 0, 0, 0)).ok()?;
                u64::try_from(reset.as_millisecond()).ok().map(Timestamp)
            })
            .find(|reset| *reset > at)
    }
}
