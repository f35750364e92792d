//! Replacing the configuration.
//!
//! Everything is checked before anything is written; every violation is named, not only the first. The write is a
//! compare-and-set on the version, together with the credentials and the audit trail in one transaction. A credential
//! gets a new version only if its fingerprint differs, so that applying the same file again changes nothing.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use secrecy::SecretString;
use tidegate_core::config::{Config, Document, Violation};
use tidegate_core::ids::ConnectionId;
use tidegate_core::routing::View as _;
use tidegate_proto::admin::v1::Difference;
use tidegate_store::durable::{DurableStoreError, SealedCredential, StoredDocument};
use tidegate_store::seal::SealError;

use crate::view::View;

use super::difference::differences;
use super::{DOCUMENT_LIMIT, LoadError, Published, Turn, limited};

/// Tries of a change that named no version, when others change the configuration at the same time.
pub(super) const MAX_TRIES: u32 = 16;
/// Longest secret in bytes; it has to fit into a request header.
const MAX_SECRET_BYTES: usize = 16 * 1024;

/// Secrets that were checked.
type Secrets = BTreeMap<ConnectionId, SecretString>;

/// A wanted configuration.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) document: Document,
    /// New secrets by connection, as they came.
    pub(crate) secrets: BTreeMap<String, Vec<u8>>,
    /// The version it is based on.
    pub(crate) expected: Option<u64>,
    /// Only check and compare.
    pub(crate) dry_run: bool,
    /// Replace credentials that were sealed with another key.
    pub(crate) reseal: bool,
}

/// What an apply did, or would do.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) version: u64,
    pub(crate) differences: Vec<Difference>,
}

/// Why nothing was applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The document is not good.
    #[error("the configuration has {} violations", .0.len())]
    Invalid(Vec<Violation>),
    /// The stored version is another than the change is based on.
    #[error("the configuration has version {current}, not {expected}")]
    Conflict {
        /// What the change is based on.
        expected: u64,
        /// What stands.
        current: u64,
    },
    /// Others kept changing the configuration. Nothing happened.
    #[error("others keep changing the configuration; nothing was changed")]
    Overtaken,
    /// The durable store does not answer. Nothing happened.
    #[error("the configuration cannot be read: {0}")]
    Unavailable(LoadError),
    /// It is not known whether the change happened.
    #[error("it is not known whether the configuration was saved: {0}")]
    Indeterminate(String),
    /// The durable store refused.
    #[error("the configuration was not saved: {0}")]
    Refused(DurableStoreError),
    /// The stored version is what was wanted, but this replica cannot use it: what was in force stays so.
    #[error("the configuration is saved as version {version}, but it is not in force: {reason}")]
    NotInForce {
        /// The stored version.
        version: u64,
        /// Why.
        reason: LoadError,
    },
    /// A stored credential cannot be opened with this replica's key. To replace it would shut out every replica
    /// that has the right one.
    #[error(
        "the stored credential of {connection} cannot be opened by this replica ({reason}); if its key is the right one, apply with reseal"
    )]
    SealedElsewhere {
        /// Whose credential.
        connection: ConnectionId,
        /// Why.
        reason: SealError,
    },
    /// A secret could not be sealed.
    #[error("a credential could not be sealed: {0}")]
    Seal(#[from] SealError),
}

/// Author of what an operator does, for the audit trail.
pub(super) const AUTHOR: &str = "admin";

/// A document to save, with the entry of the audit trail.
pub(super) struct Change<'a> {
    pub(super) document: Document,
    pub(super) credentials: Vec<SealedCredential>,
    pub(super) author: &'a str,
    pub(super) summary: &'a str,
}

/// What became of a change.
pub(super) enum Saved {
    /// It has this version and is in force.
    As(u64),
    /// Nothing happened: this version stands.
    Overtaken(u64),
}

impl Published {
    /// Replaces the configuration if it is good.
    pub(crate) async fn apply(&self, wanted: Wanted, view: &View) -> Result<Applied, ApplyError> {
        let secrets = self.check(&wanted)?;
        let mut turn = self.turn.lock().await;
        for _ in 0..MAX_TRIES {
            let stored = limited(DOCUMENT_LIMIT, self.durable.load_document())
                .await
                .map_err(ApplyError::Unavailable)?;
            if let Some(expected) = wanted.expected
                && expected != stored.version
            {
                return Err(ApplyError::Conflict {
                    expected,
                    current: stored.version,
                });
            }
            let (credentials, renewed) = self.credentials(&wanted, &secrets, &stored, view)?;
            let differences = differences(&stored.document, &wanted.document, &renewed);
            let is_change = !differences.is_empty();
            if !wanted.dry_run && !is_change && !self.has_in_force(stored.version) {
                let version = stored.version;
                self.take(stored, &mut turn)
                    .map_err(|reason| ApplyError::NotInForce { version, reason })?;
                return Ok(Applied {
                    version,
                    differences,
                });
            }
            if wanted.dry_run || !is_change {
                return Ok(Applied {
                    version: stored.version,
                    differences,
                });
            }
            let change = Change {
                document: wanted.document.clone(),
                credentials,
                author: AUTHOR,
                summary: &summary(&differences),
            };
            match self.save(stored.version, change, &mut turn).await? {
                Saved::As(version) => {
                    return Ok(Applied {
                        version,
                        differences,
                    });
                }
                Saved::Overtaken(current) => {
                    if let Some(expected) = wanted.expected {
                        return Err(ApplyError::Conflict { expected, current });
                    }
                }
            }
        }
        Err(ApplyError::Overtaken)
    }

    /// Saves a document whose base is still what stands, and puts it in force.
    pub(super) async fn save(
        &self,
        base: u64,
        change: Change<'_>,
        turn: &mut Turn,
    ) -> Result<Saved, ApplyError> {
        let save = self.durable.save_document(
            base,
            &change.document,
            &change.credentials,
            change.author,
            change.summary,
        );
        match limited(DOCUMENT_LIMIT, save).await {
            Ok(version) => {
                let saved = StoredDocument {
                    version,
                    document: change.document,
                    credentials: change.credentials,
                };
                // The document was checked before. A credential that was kept may still be sealed with another key.
                self.take(saved, turn).map_err(|reason| {
                    tracing::error!(version, %reason, "a saved configuration is not in force");
                    ApplyError::NotInForce { version, reason }
                })?;
                Ok(Saved::As(version))
            }
            Err(LoadError::Store(DurableStoreError::VersionConflict { current, .. })) => {
                Ok(Saved::Overtaken(current))
            }
            Err(LoadError::Store(error)) if error.is_certainly_not_applied() => {
                Err(ApplyError::Refused(error))
            }
            Err(error) => {
                self.wake.notify_one();
                Err(ApplyError::Indeterminate(error.to_string()))
            }
        }
    }

    fn check(&self, wanted: &Wanted) -> Result<Secrets, ApplyError> {
        let mut violations = match Config::build(wanted.document.clone(), 0, &self.overrides) {
            Ok(_) => Vec::new(),
            Err(violations) => violations,
        };
        let mut secrets = Secrets::new();
        for (name, secret) in &wanted.secrets {
            match secret_of(&wanted.document, name, secret) {
                Ok((connection, secret)) => {
                    secrets.insert(connection, secret);
                }
                Err(message) => violations.push(Violation {
                    field: format!("credentials[{name}]"),
                    message: message.to_owned(),
                }),
            }
        }
        if violations.is_empty() {
            Ok(secrets)
        } else {
            Err(ApplyError::Invalid(violations))
        }
    }

    fn has_in_force(&self, version: u64) -> bool {
        self.config()
            .is_some_and(|config| config.version >= version)
    }

    /// Credentials to store, and the connections whose credential is new.
    fn credentials(
        &self,
        wanted: &Wanted,
        secrets: &Secrets,
        stored: &StoredDocument,
        view: &View,
    ) -> Result<(Vec<SealedCredential>, Vec<ConnectionId>), ApplyError> {
        let before: BTreeMap<&ConnectionId, &SealedCredential> = stored
            .credentials
            .iter()
            .map(|credential| (&credential.connection, credential))
            .collect();
        let mut credentials = Vec::new();
        let mut renewed = Vec::new();
        for connection in &wanted.document.connections {
            let old = before.get(&connection.id).copied();
            if let Some(old) = old
                && !wanted.reseal
                && let Err(reason) = self.sealer.open(old)
            {
                return Err(ApplyError::SealedElsewhere {
                    connection: connection.id.clone(),
                    reason,
                });
            }
            let Some(secret) = secrets.get(&connection.id) else {
                credentials.extend(old.cloned());
                continue;
            };
            if let Some(old) = old
                && old.fingerprint == self.sealer.fingerprint(&connection.id, secret)
            {
                credentials.push(old.clone());
                continue;
            }
            // A connection that comes back under an old name must not meet what its earlier credential caused.
            let seen = view
                .connection(&connection.provider, &connection.id)
                .map_or(0, |state| state.credential_version);
            let version = old.map_or(0, |old| old.version).max(seen).saturating_add(1);
            credentials.push(self.sealer.seal(&connection.id, version, secret)?);
            renewed.push(connection.id.clone());
        }
        Ok((credentials, renewed))
    }
}

/// A secret and whose it is, or what is wrong with it.
fn secret_of(
    document: &Document,
    name: &str,
    secret: &[u8],
) -> Result<(ConnectionId, SecretString), &'static str> {
    let connection = document
        .connections
        .iter()
        .find(|connection| connection.id.as_str() == name)
        .ok_or("there is no such connection")?;
    if secret.is_empty() || secret.len() > MAX_SECRET_BYTES {
        return Err("must have between 1 and 16384 bytes");
    }
    let text = std::str::from_utf8(secret).map_err(|_| "must be text")?;
    if text.contains(|character: char| character.is_control()) {
        return Err("must not contain control characters or line breaks");
    }
    Ok((connection.id.clone(), SecretString::from(text)))
}

/// For the audit trail: how many of which kind.
fn summary(differences: &[Difference]) -> String {
    let count = |kind: &str| differences.iter().filter(|it| it.kind == kind).count();
    format!(
        "{} added, {} changed, {} removed",
        count("added"),
        count("changed"),
        count("removed")
    )
}
