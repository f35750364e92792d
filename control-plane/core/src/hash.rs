//! A hash that is the same in every process and version: FNV-1a, 64 bit. Not for secrets, and its low bits alone
//! spread badly: mix it before it is cut down.

/// The hash of nothing.
pub(crate) const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash of what `hash` stands for, followed by these bytes.
#[must_use]
pub(crate) fn extend(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
