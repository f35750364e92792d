//! How unsigned 64-bit numbers fit into the signed columns of both databases.
//!
//! Three kinds, since no one way serves all:
//!
//! - *ordered*: versions of the hot state and numbers of reports. Every value round-trips and keeps its
//!   order, since upserts compare them in SQL. The stored number is the real one less 2^63.
//! - *bits*: random or foreign numbers that are only compared for equality. Every value round-trips; in
//!   Postgres `to_hex` shows a plane as logs do.
//! - *moment*: times in ms and counts. Readable; what does not fit (moments 292 million years away) is kept as
//!   the last one, and the last one reads back as `u64::MAX`, which means *never*.

use tidegate_core::time::Timestamp;

const TOP: u64 = 1 << 63;

/// Encodes an ordered number.
pub(crate) fn ordered(number: u64) -> i64 {
    (number ^ TOP).cast_signed()
}

/// Decodes [`ordered`].
pub(crate) fn from_ordered(stored: i64) -> u64 {
    stored.cast_unsigned() ^ TOP
}

/// Encodes a number that is compared for equality only.
pub(crate) fn bits(number: u64) -> i64 {
    number.cast_signed()
}

/// Decodes [`bits`].
pub(crate) fn from_bits(stored: i64) -> u64 {
    stored.cast_unsigned()
}

/// Encodes a count, at most the largest that fits.
pub(crate) fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Encodes a moment.
pub(crate) fn moment(at: Timestamp) -> i64 {
    count(at.0)
}

/// Encodes the present, to compare moments with: whatever it is, *never* lies after it.
pub(crate) fn present(now: Timestamp) -> i64 {
    moment(now).min(i64::MAX - 1)
}

/// Decodes [`moment`]; what is before the epoch is the epoch.
pub(crate) fn from_moment(stored: i64) -> Timestamp {
    match stored {
        i64::MAX => Timestamp(u64::MAX),
        stored => Timestamp(u64::try_from(stored).unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::{bits, from_moment, from_ordered, moment, ordered, present};
    use tidegate_core::time::Timestamp;

    const NUMBERS: [u64; 9] = [
        0,
        1,
        2,
        1_790_000_000_000,
        i64::MAX as u64 - 1,
        i64::MAX as u64,
        1 << 63,
        u64::MAX - 1,
        u64::MAX,
    ];

    #[test]
    fn ordered_numbers_come_back_and_keep_their_order() {
        for number in NUMBERS {
            assert_eq!(from_ordered(ordered(number)), number);
        }
        assert!(NUMBERS.is_sorted_by_key(|number| ordered(*number)));
    }

    #[test]
    fn bits_of_different_numbers_differ() {
        for one in NUMBERS {
            for two in NUMBERS {
                assert_eq!(bits(one) == bits(two), one == two);
            }
        }
    }

    #[test]
    fn moments_come_back_and_never_stays_never() {
        for number in [0, 1, 1_790_000_000_000, i64::MAX as u64 - 1, u64::MAX] {
            assert_eq!(from_moment(moment(Timestamp(number))), Timestamp(number));
        }
        assert!(NUMBERS.is_sorted_by_key(|number| moment(Timestamp(*number))));
        assert_eq!(from_moment(-1), Timestamp(0));
        assert!(
            NUMBERS
                .iter()
                .all(|now| present(Timestamp(*now)) < moment(Timestamp(u64::MAX)))
        );
    }
}
