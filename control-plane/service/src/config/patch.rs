//! Changing settings and nothing else.
//!
//! A change is read, merged and saved under the version it was read at, so two replicas that serve two operators
//! lose nothing of either: who comes second merges again. Everything beside the sections it names stays as stored,
//! also what this release does not understand. Secrets are carried over sealed.

use serde_json::{Map, Value};
use tidegate_store::durable::StoredDocument;

use super::apply::{AUTHOR, Applied, ApplyError, Change, MAX_TRIES, Saved};
use super::difference::differences;
use super::{DOCUMENT_LIMIT, Published, limited};

/// Longest author, in bytes.
pub(crate) const MAX_AUTHOR_BYTES: usize = 128;

/// A wanted change of settings.
#[derive(Debug)]
pub(crate) struct WantedPatch {
    /// JSON merge patch of one or more sections.
    pub(crate) patch: Map<String, Value>,
    /// The version it is based on.
    pub(crate) expected: Option<u64>,
    /// Who says they do it; empty when nobody says.
    pub(crate) author: String,
    /// Only check and compare.
    pub(crate) dry_run: bool,
}

impl Published {
    /// Changes settings if the result is good.
    pub(crate) async fn patch_settings(&self, wanted: WantedPatch) -> Result<Applied, ApplyError> {
        let author = if wanted.author.is_empty() {
            AUTHOR.to_owned()
        } else {
            format!("{AUTHOR} {}", wanted.author)
        };
        let mut turn = self.turn.lock().await;
        for _ in 0..MAX_TRIES {
            let stored = limited(DOCUMENT_LIMIT, self.durable.load_document())
                .await
                .map_err(ApplyError::Unavailable)?;
            let base = stored.version;
            if let Some(expected) = wanted.expected
                && expected != base
            {
                return Err(ApplyError::Conflict {
                    expected,
                    current: base,
                });
            }
            let StoredDocument {
                document: before,
                secrets,
                ..
            } = stored;
            let mut document = before.clone();
            document.settings = before
                .settings
                .patched(&wanted.patch)
                .map_err(ApplyError::Invalid)?;
            let differences = differences(&before, &document, &[]);
            if wanted.dry_run || differences.is_empty() {
                return Ok(Applied {
                    version: base,
                    differences,
                    warnings: Vec::new(),
                });
            }
            let details: Vec<String> = differences
                .iter()
                .flat_map(|difference| difference.details.iter().cloned())
                .collect();
            let change = Change {
                document,
                secrets,
                author: &author,
                summary: &format!("settings: {}", details.join("; ")),
            };
            match self.save(base, change, &mut turn).await? {
                Saved::As(version) => {
                    return Ok(Applied {
                        version,
                        differences,
                        warnings: Vec::new(),
                    });
                }
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
}
