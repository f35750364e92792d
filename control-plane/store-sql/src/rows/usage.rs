//! Usage as it is written down.

use std::collections::BTreeMap;

use tidegate_core::ids::{AttemptId, KeyId, PlaneIncarnation};
use tidegate_core::usage::{OpenAttempt, UsageRecord};
use tidegate_store::durable::DurableStoreError;

use crate::number::from_bits;

/// One record of each attempt, in the order of attempts: a statement may not touch a row twice, and two writers that hold
/// some of the same ones cannot block each other for good.
pub(crate) fn one_of_each(records: &[UsageRecord]) -> Vec<&UsageRecord> {
    let mut kept: BTreeMap<AttemptId, &UsageRecord> = BTreeMap::new();
    for record in records {
        let standing = kept.entry(record.attempt).or_insert(record);
        if record.tokens.source.replaces(standing.tokens.source) {
            *standing = record;
        }
    }
    kept.into_values().collect()
}

/// The attempts in their order, each once. Those of another data plane are refused: whether it lives is not known.
pub(crate) fn of_plane(
    plane: PlaneIncarnation,
    attempts: &[OpenAttempt],
) -> Result<Vec<&OpenAttempt>, DurableStoreError> {
    let mut kept: BTreeMap<u64, &OpenAttempt> = BTreeMap::new();
    for open in attempts {
        if open.attempt.plane != plane {
            let text = format!(
                "attempt {} is not of data plane {:016x}",
                open.attempt, plane.0
            );
            return Err(DurableStoreError::Refused(text));
        }
        kept.entry(open.attempt.number).or_insert(open);
    }
    Ok(kept.into_values().collect())
}

/// The name of a key, where there is one.
pub(crate) fn key_name(key: Option<&KeyId>) -> Option<&str> {
    key.map(KeyId::as_str)
}

/// The attempt that stored numbers name.
pub(crate) fn attempt((plane, number): (i64, i64)) -> AttemptId {
    AttemptId {
        plane: PlaneIncarnation(from_bits(plane)),
        number: from_bits(number),
    }
}
