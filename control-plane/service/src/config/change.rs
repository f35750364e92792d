//! Changing a part of the configuration and nothing else.
//!
//! A change is read, made and saved under the version it was read at, so two replicas that serve two operators lose nothing
//! of either: who comes second makes it again on what stands then. Everything it does not name stays as stored, also what
//! this release does not understand. Secrets are carried over sealed; those of connections that are gone go with them.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use tidegate_core::config::{Config, Document, Resource, Violation, Warning};
use tidegate_core::ids::ConnectionId;
use tidegate_proto::admin::v1::Difference;
use tidegate_store::durable::SealedSecrets;
use tokio::time::{Instant, timeout_at};

use super::apply::{Applied, ApplyError, Change, MAX_TRIES, Saved};
use super::difference::differences;
use super::{DOCUMENT_LIMIT, Published, limited};

/// How a change is made.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// The version it is based on.
    pub(crate) expected: Option<u64>,
    /// Who does it, for the audit trail.
    pub(crate) author: String,
    /// Only check and compare.
    pub(crate) dry_run: bool,
    /// It is not to be made after this: nobody waits for it any more, and what was changed meanwhile is to stand.
    pub(crate) deadline: Option<Instant>,
}

impl Published {
    /// Merges into settings: a JSON merge patch of one or more sections.
    pub(crate) async fn patch_settings(
        &self,
        patch: &Map<String, Value>,
        terms: &Terms,
    ) -> Result<Applied, ApplyError> {
        let edit = |document: &mut Document| -> Result<(), ApplyError> {
            document.settings = document.settings.patched(patch)?;
            Ok(())
        };
        let summary = |differences: &[Difference]| {
            let details = differences.iter().flat_map(|it| it.details.iter().cloned());
            format!("settings: {}", details.collect::<Vec<_>>().join("; "))
        };
        self.change(terms, edit, summary).await
    }

    /// Switches a connection on or off.
    pub(crate) async fn set_enabled(
        &self,
        connection: &ConnectionId,
        enabled: bool,
        terms: &Terms,
    ) -> Result<Applied, ApplyError> {
        let edit = |document: &mut Document| -> Result<(), ApplyError> {
            let mut all = document.connections.iter_mut();
            let found = all.find(|it| it.id == *connection).ok_or_else(|| {
                let resource = Resource::Connection(connection.to_string());
                ApplyError::Missing(resource)
            })?;
            found.enabled = enabled;
            Ok(())
        };
        let word = if enabled { "on" } else { "off" };
        let summary = |_: &[Difference]| format!("connection {connection} switched {word}");
        self.change(terms, edit, summary).await
    }

    /// Takes one thing out, unless others refer to it, or it is the last key: without any, data planes that do not require
    /// one let everybody in, which is for a whole document to say.
    pub(crate) async fn delete(
        &self,
        resource: &Resource,
        terms: &Terms,
    ) -> Result<Applied, ApplyError> {
        let edit = |document: &mut Document| -> Result<(), ApplyError> {
            let referrers = document.referrers(resource);
            if !document.take_out(resource) {
                return Err(ApplyError::Missing(resource.clone()));
            }
            match resource {
                _ if !referrers.is_empty() => Err(ApplyError::InUse {
                    resource: resource.clone(),
                    referrers,
                }),
                Resource::Key(_) if document.keys.is_empty() => {
                    Err(ApplyError::Invalid(vec![last_key()]))
                }
                _ => Ok(()),
            }
        };
        self.change(terms, edit, |_| format!("{resource} deleted"))
            .await
    }

    /// Refuses what a change makes wrong, and not what was so before, which is mended wherever it is read. Returns what is
    /// worth a word about the document afterwards.
    pub(super) fn check_change(
        &self,
        before: &Document,
        after: &Document,
    ) -> Result<Vec<Warning>, ApplyError> {
        let build =
            |document: &Document| Config::build_stored(document.clone(), 0, &self.overrides);
        let known = build(before).map(|it| it.mended).unwrap_or_default();
        let config = build(after)?;
        let warnings = config.warnings();
        let wrong = newly_wrong(&known, config.mended);
        if wrong.is_empty() {
            Ok(warnings)
        } else {
            Err(ApplyError::Invalid(wrong))
        }
    }

    async fn change(
        &self,
        terms: &Terms,
        edit: impl Fn(&mut Document) -> Result<(), ApplyError>,
        summary: impl Fn(&[Difference]) -> String,
    ) -> Result<Applied, ApplyError> {
        let turn = self.turn.lock();
        let mut turn = match terms.deadline {
            None => turn.await,
            Some(deadline) => timeout_at(deadline, turn)
                .await
                .map_err(|_elapsed| ApplyError::TooLate)?,
        };
        for _ in 0..MAX_TRIES {
            let stored = limited(DOCUMENT_LIMIT, self.durable.load_document())
                .await
                .map_err(ApplyError::Unavailable)?;
            let base = stored.version;
            if let Some(expected) = terms.expected
                && expected != base
            {
                return Err(ApplyError::Conflict {
                    expected,
                    current: base,
                });
            }
            let mut document = stored.document.clone();
            edit(&mut document)?;
            self.check_change(&stored.document, &document)?;
            let differences = differences(&stored.document, &document, &[]);
            let done = |version, differences| Applied {
                version,
                differences,
                warnings: Vec::new(),
                untouched: Vec::new(),
            };
            if terms.dry_run {
                return Ok(done(base, differences));
            }
            if differences.is_empty() {
                let version = self.put_in_force(stored, &mut turn)?;
                return Ok(done(version, differences));
            }
            let mut secrets = stored.secrets;
            keep_secrets_of(&document, &mut secrets);
            if terms.deadline.is_some_and(|it| it <= Instant::now()) {
                return Err(ApplyError::TooLate);
            }
            let change = Change {
                document,
                secrets,
                author: &terms.author,
                summary: &summary(&differences),
            };
            match self.save(base, change, &mut turn).await? {
                Saved::As(version) => return Ok(done(version, differences)),
                Saved::Overtaken(current) => {
                    if let Some(expected) = terms.expected {
                        return Err(ApplyError::Conflict { expected, current });
                    }
                }
                Saved::SecretsChanged => {}
            }
        }
        Err(ApplyError::Overtaken)
    }
}

impl From<Vec<Violation>> for ApplyError {
    fn from(violations: Vec<Violation>) -> Self {
        Self::Invalid(violations)
    }
}

/// What is wrong now and was not before. Places may have moved, so that only the words are compared.
fn newly_wrong(before: &[Violation], after: Vec<Violation>) -> Vec<Violation> {
    let mut known: Vec<&str> = before.iter().map(|it| it.message.as_str()).collect();
    after
        .into_iter()
        .filter(|violation| {
            let found = known.iter().position(|it| *it == violation.message);
            found.map(|place| known.swap_remove(place)).is_none()
        })
        .collect()
}

fn last_key() -> Violation {
    Violation {
        field: "keys".to_owned(),
        message: "is the last key: without any, data planes serve everybody, unless they are started with \
                  --require-api-key; make another key first, or apply a document without keys"
            .to_owned(),
    }
}

fn keep_secrets_of(document: &Document, secrets: &mut SealedSecrets) {
    let left: BTreeSet<&ConnectionId> = document.connections.iter().map(|it| &it.id).collect();
    secrets
        .credentials
        .retain(|it| left.contains(&it.connection));
    secrets.grants.retain(|it| left.contains(&it.connection));
}
