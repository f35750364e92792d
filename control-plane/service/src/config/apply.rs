//! Replacing the configuration, or putting a part into it.
//!
//! Everything is checked before anything is written; every violation is named, not only the first. The write is a
//! compare-and-set on the version, together with the secrets and the audit trail in one transaction. A secret gets a new
//! version only if its fingerprint differs from what was last applied, so that applying the same file again changes
//! nothing, also where a token was renewed since. An access token that is renewed while an apply is under way makes it
//! look again, and never fail: the version of the document is the operators' alone.

#[cfg(test)]
mod tests;

mod secrets;

use std::collections::BTreeMap;

use tidegate_core::config::{Config, Document, Merged, Resource, Violation, Warning};
use tidegate_core::ids::ConnectionId;
use tidegate_proto::admin::v1::Difference;
use tidegate_store::durable::{DurableStoreError, SealedSecrets, StoredDocument};
use tidegate_store::seal::SealError;

use crate::view::View;

use super::difference::differences;
use super::{DOCUMENT_LIMIT, LoadError, Published, Turn, limited};
use secrets::Secrets;

/// Tries of a change that named no version, when others change the configuration at the same time.
pub(super) const MAX_TRIES: u32 = 16;

/// What a wanted document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The whole: what it does not name is taken out.
    Replace,
    /// A part: what it does not name stays.
    Merge,
}

/// A wanted configuration.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) document: Document,
    pub(crate) mode: Mode,
    /// New secrets, as they came.
    pub(crate) secrets: WantedSecrets,
    /// The version it is based on.
    pub(crate) expected: Option<u64>,
    /// Only check and compare.
    pub(crate) dry_run: bool,
    /// Replace credentials that were sealed with another key.
    pub(crate) reseal: bool,
    /// Who does it, for the audit trail.
    pub(crate) author: String,
}

/// New secrets by connection, as they came.
#[derive(Default)]
pub(crate) struct WantedSecrets {
    /// API keys and access tokens.
    pub(crate) credentials: BTreeMap<String, Vec<u8>>,
    /// Refresh tokens.
    pub(crate) refresh_tokens: BTreeMap<String, Vec<u8>>,
    /// Secrets of OAuth clients.
    pub(crate) client_secrets: BTreeMap<String, Vec<u8>>,
}

impl std::fmt::Debug for WantedSecrets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("WantedSecrets")
            .finish_non_exhaustive()
    }
}

/// What an apply did, or would do.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) version: u64,
    pub(crate) differences: Vec<Difference>,
    /// About the document as it is now.
    pub(crate) warnings: Vec<Warning>,
    /// What stands that a part did not name; nothing for a whole.
    pub(crate) untouched: Vec<Resource>,
}

/// What a wanted document comes to: the whole that is to stand, and the secrets for it.
struct Target {
    document: Document,
    secrets: Secrets,
    warnings: Vec<Warning>,
    untouched: Vec<Resource>,
}

/// Why nothing was applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The document is not good.
    #[error("the configuration has {} violations", .0.len())]
    Invalid(Vec<Violation>),
    /// What is to be changed does not exist.
    #[error("there is no {0}")]
    Missing(Resource),
    /// What is to be deleted is referred to.
    #[error("{resource} is in use")]
    InUse {
        /// What.
        resource: Resource,
        /// Everything that refers to it.
        referrers: Vec<Violation>,
    },
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
    /// Nobody waits for the change any more. Nothing happened.
    #[error("the change came to its turn too late; nothing was changed")]
    TooLate,
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
        "a stored secret of {connection} cannot be opened by this replica ({reason}); if its key is the right one, apply with reseal"
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

/// A document to save, with the entry of the audit trail.
pub(super) struct Change<'a> {
    pub(super) document: Document,
    /// Those it was read with, or what an operator made of them.
    pub(super) secrets: SealedSecrets,
    pub(super) author: &'a str,
    pub(super) summary: &'a str,
}

/// What became of a change.
pub(super) enum Saved {
    /// It has this version and is in force.
    As(u64),
    /// Nothing happened: this version stands.
    Overtaken(u64),
    /// Nothing happened: a token was renewed since the secrets were read. To be tried again on what stands now.
    SecretsChanged,
}

impl Published {
    /// Replaces the configuration, or puts a part into it, if what it comes to is good.
    pub(crate) async fn apply(&self, wanted: Wanted, view: &View) -> Result<Applied, ApplyError> {
        // A whole is checked before anything is asked of the store; a part means nothing without what stands there.
        let whole = match wanted.mode {
            Mode::Replace => Some(self.whole(&wanted)?),
            Mode::Merge => None,
        };
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
            let merged;
            let target = match &whole {
                Some(whole) => whole,
                None => {
                    merged = self.merged(&wanted, &stored.document)?;
                    &merged
                }
            };
            let sealed = self.seal(target, wanted.reseal, &stored, view)?;
            let differences = differences(&stored.document, &target.document, &sealed.renewed);
            let is_change = !differences.is_empty();
            let done = |version, differences| Applied {
                version,
                differences,
                warnings: target.warnings.clone(),
                untouched: target.untouched.clone(),
            };
            if wanted.dry_run {
                return Ok(done(stored.version, differences));
            }
            if !is_change {
                let version = self.put_in_force(stored, &mut turn)?;
                return Ok(done(version, differences));
            }
            let change = Change {
                document: target.document.clone(),
                secrets: sealed,
                author: &wanted.author,
                summary: &summary(&differences),
            };
            match self.save(stored.version, change, &mut turn).await? {
                Saved::As(version) => return Ok(done(version, differences)),
                Saved::Overtaken(current) => {
                    if let Some(expected) = wanted.expected {
                        return Err(ApplyError::Conflict { expected, current });
                    }
                }
                Saved::SecretsChanged => {}
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
            &change.secrets,
            change.author,
            change.summary,
        );
        match limited(DOCUMENT_LIMIT, save).await {
            Ok(version) => {
                let saved = StoredDocument {
                    version,
                    document: change.document,
                    secrets: change.secrets,
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
            Err(LoadError::Store(DurableStoreError::SecretsChanged)) => Ok(Saved::SecretsChanged),
            Err(LoadError::Store(error)) if error.is_certainly_not_applied() => {
                Err(ApplyError::Refused(error))
            }
            Err(error) => {
                self.wake.notify_one();
                Err(ApplyError::Indeterminate(error.to_string()))
            }
        }
    }

    /// The wanted document is all there is to be.
    fn whole(&self, wanted: &Wanted) -> Result<Target, ApplyError> {
        let document = wanted.document.clone();
        let (mut violations, warnings) = match Config::build(document.clone(), 0, &self.overrides) {
            Ok(config) => (Vec::new(), config.warnings()),
            Err(violations) => (violations, Vec::new()),
        };
        let secrets = Secrets::check(&document, &wanted.secrets, &mut violations);
        if !violations.is_empty() {
            return Err(ApplyError::Invalid(violations));
        }
        Ok(Target {
            document,
            secrets,
            warnings,
            untouched: Vec::new(),
        })
    }

    /// The wanted document is a part of what is to be. Of what it does not name, nothing that was wrong before is its fault.
    fn merged(&self, wanted: &Wanted, stored: &Document) -> Result<Target, ApplyError> {
        let Merged {
            document,
            untouched,
        } = stored.merged_with(wanted.document.clone())?;
        // Places in the whole say nothing to who knows the part.
        let named = |mut violations: Vec<Violation>| {
            for violation in &mut violations {
                violation.field = document.place_by_name(&violation.field);
            }
            ApplyError::Invalid(violations)
        };
        let mut warnings = match self.check_change(stored, &document) {
            Ok(warnings) => warnings,
            Err(ApplyError::Invalid(violations)) => return Err(named(violations)),
            Err(error) => return Err(error),
        };
        for warning in &mut warnings {
            warning.field = document.place_by_name(&warning.field);
        }
        let mut violations = Vec::new();
        let secrets = Secrets::check(&document, &wanted.secrets, &mut violations);
        if !violations.is_empty() {
            return Err(named(violations));
        }
        Ok(Target {
            document,
            secrets,
            warnings,
            untouched,
        })
    }

    /// What is wanted stands already. Whoever is told so finds it in force, also at a replica that had not heard of it.
    pub(super) fn put_in_force(
        &self,
        stored: StoredDocument,
        turn: &mut Turn,
    ) -> Result<u64, ApplyError> {
        let version = stored.version;
        let in_force = self.config().is_some_and(|it| it.version >= version);
        if !in_force {
            self.take(stored, turn)
                .map_err(|reason| ApplyError::NotInForce { version, reason })?;
        }
        Ok(version)
    }
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
