//! What both adapters do with rows: batches, texts, documents.

pub(crate) mod events;
pub(crate) mod handoffs;
pub(crate) mod leases;
pub(crate) mod pins;
mod read;
pub(crate) mod tokens;
pub(crate) mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use tidegate_core::ids::PlaneIncarnation;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{
    DurableStoreError, MAX_AUDIT_TEXT_BYTES, MAX_LIST_ROWS, SealedCredential, SealedSecrets,
};
use tidegate_store::hot::{Entry, ReportMark};

pub(crate) use read::{
    AuditRow, CredentialRow, EntryRow, from_json, known, plain_version, read_mark,
};

/// Most rows in one statement.
pub(crate) const BATCH_ROWS: usize = 1_000;

/// The newest entry of each key, in the order of keys: a statement may not touch a row twice, and two writers
/// that lock rows in the same order cannot block each other for good.
pub(crate) fn newest_of_each(entries: &[Entry]) -> Vec<&Entry> {
    let mut newest: BTreeMap<&str, &Entry> = BTreeMap::new();
    for entry in entries {
        let kept = newest.entry(&entry.key).or_insert(entry);
        if kept.version < entry.version {
            *kept = entry;
        }
    }
    newest.into_values().collect()
}

/// The highest mark of each plane, in the order of planes.
pub(crate) fn highest_of_each(marks: &[ReportMark]) -> Vec<ReportMark> {
    let mut highest: BTreeMap<PlaneIncarnation, u64> = BTreeMap::new();
    for mark in marks {
        let number = highest.entry(mark.plane).or_insert(mark.number);
        *number = mark.number.max(*number);
    }
    highest
        .into_iter()
        .map(|(plane, number)| ReportMark { plane, number })
        .collect()
}

/// Refuses lists of secrets that no table can hold.
pub(crate) fn check_secrets(secrets: &SealedSecrets) -> Result<(), DurableStoreError> {
    let mut seen = BTreeSet::new();
    for grant in &secrets.grants {
        if !seen.insert(&grant.connection) {
            return Err(DurableStoreError::Refused(format!(
                "two refresh tokens for connection {}",
                grant.connection
            )));
        }
        tokens::token_version(&grant.refresh_token)?;
        if let Some(secret) = &grant.client_secret {
            tokens::token_version(secret)?;
        }
    }
    let mut seen = BTreeSet::new();
    for credential in &secrets.credentials {
        if !seen.insert(&credential.connection) {
            return Err(DurableStoreError::Refused(format!(
                "two credentials for connection {}",
                credential.connection
            )));
        }
        credential_version(credential)?;
    }
    Ok(())
}

/// The version of a credential as stored.
pub(crate) fn credential_version(credential: &SealedCredential) -> Result<i64, DurableStoreError> {
    match i64::try_from(credential.version) {
        Ok(version) if version > 0 => Ok(version),
        _ => Err(DurableStoreError::Refused(format!(
            "the credential of connection {} has version {}",
            credential.connection, credential.version
        ))),
    }
}

/// JSON to store.
pub(crate) fn to_json<T: Serialize>(what: &str, value: &T) -> Result<String, DurableStoreError> {
    serde_json::to_string(value)
        .map_err(|error| DurableStoreError::Refused(format!("{what}: {error}")))
}

/// A text of the audit trail: cut to its bound, without the one character that Postgres cannot store.
pub(crate) fn audit_text(text: &str) -> String {
    let mut kept = String::new();
    for character in text.chars().filter(|character| *character != '\0') {
        if kept.len().saturating_add(character.len_utf8()) > MAX_AUDIT_TEXT_BYTES {
            break;
        }
        kept.push(character);
    }
    kept
}

/// When something kept for `ttl` from `now` on is forgotten.
pub(crate) fn ttl_end(now: Timestamp, ttl: Duration) -> Timestamp {
    now.plus_ms(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
}

/// How many rows to list.
pub(crate) fn list_limit(asked: u32) -> i64 {
    i64::from(asked.min(MAX_LIST_ROWS))
}

#[cfg(test)]
mod tests {
    use super::{audit_text, highest_of_each, newest_of_each};
    use tidegate_core::ids::PlaneIncarnation;
    use tidegate_core::time::Timestamp;
    use tidegate_core::version::Version;
    use tidegate_store::durable::MAX_AUDIT_TEXT_BYTES;
    use tidegate_store::hot::{Entry, ReportMark};

    fn entry(key: &str, incarnation: u64, revision: u64) -> Entry {
        Entry {
            key: key.to_owned(),
            version: Version::new(incarnation, revision),
            schema: 1,
            payload: Vec::new(),
            expires_at: Timestamp(1),
        }
    }

    #[test]
    fn a_batch_holds_each_key_once_with_its_newest_version_in_order() {
        let entries = [
            entry("p:b", 1, 9),
            entry("p:a", 2, 1),
            entry("p:b", 2, 1),
            entry("p:a", 1, 8),
        ];
        let batch: Vec<_> = newest_of_each(&entries)
            .into_iter()
            .map(|entry| (entry.key.as_str(), entry.version))
            .collect();
        assert_eq!(
            batch,
            [("p:a", Version::new(2, 1)), ("p:b", Version::new(2, 1))]
        );
    }

    #[test]
    fn a_batch_holds_each_plane_once_with_its_highest_mark() {
        let mark = |plane, number| ReportMark {
            plane: PlaneIncarnation(plane),
            number,
        };
        assert_eq!(
            highest_of_each(&[mark(9, 3), mark(1, 2), mark(9, 2)]),
            [mark(1, 2), mark(9, 3)]
        );
    }

    #[test]
    fn audit_texts_are_cut_at_a_character_and_hold_no_nul() {
        assert_eq!(audit_text("a\0b"), "ab");
        let cut = audit_text(&"€".repeat(MAX_AUDIT_TEXT_BYTES));
        assert!(cut.len() <= MAX_AUDIT_TEXT_BYTES && cut.len() > MAX_AUDIT_TEXT_BYTES - 3);
    }
}
