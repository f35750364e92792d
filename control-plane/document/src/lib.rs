//! Reads the configuration file: YAML in, a [`Document`] and its secrets out.
//!
//! The file is read strictly: an unknown member, a duplicate one or a wrong type is an error with its place.
//! Secrets are referred to (`env`, `file`) and resolved here, on the machine where the file is applied; of
//! clients' keys only the SHA-256 goes on. Whether the document makes sense is checked by
//! `tidegate_core::config::Config::build`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret as _, SecretString};
use tidegate_core::config::{Document, SecretSource, Violation, key_hash};
use tidegate_core::ids::ConnectionId;

/// Largest configuration file, in bytes.
pub const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// Largest secret, in bytes.
pub const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// A configuration file with its secrets resolved.
#[derive(Debug)]
pub struct Loaded {
    /// The document; every key has its hash.
    pub document: Document,
    /// Credentials of the connections that name a source.
    pub credentials: BTreeMap<ConnectionId, SecretString>,
    /// Refresh tokens of the connections that name a source.
    pub refresh_tokens: BTreeMap<ConnectionId, SecretString>,
    /// Secrets of OAuth clients, of the connections that name a source.
    pub client_secrets: BTreeMap<ConnectionId, SecretString>,
}

/// Secrets as they are sent to the control plane.
#[must_use]
pub fn exposed(secrets: &BTreeMap<ConnectionId, SecretString>) -> HashMap<String, Vec<u8>> {
    secrets
        .iter()
        .map(|(connection, secret)| {
            let secret = secret.expose_secret().as_bytes().to_vec();
            (connection.to_string(), secret)
        })
        .collect()
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is larger than [`MAX_FILE_BYTES`].
    #[error("{path}: larger than {MAX_FILE_BYTES} bytes")]
    TooLarge {
        /// Which file.
        path: PathBuf,
    },
    /// The file is not a document: its place and what is wrong.
    #[error("{0}")]
    Syntax(String),
    /// Settings that cannot be used.
    #[error("{}", lines(.0))]
    Settings(Vec<Violation>),
    /// Secrets that cannot be resolved.
    #[error("{}", lines(.0))]
    Secrets(Vec<Violation>),
}

fn lines(violations: &[Violation]) -> String {
    violations
        .iter()
        .map(|violation| format!("{}: {}", violation.field, violation.message))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Where secrets come from; the real one is [`Machine`].
pub trait Secrets {
    /// The value of an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// The content of a file.
    ///
    /// # Errors
    /// What is wrong with the file, for people.
    fn file(&self, path: &Path) -> Result<String, String>;
}

/// Environment and files of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine;

impl Secrets for Machine {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &Path) -> Result<String, String> {
        let read = || {
            if std::fs::metadata(path)?.len() > MAX_SECRET_BYTES {
                return Err(std::io::Error::other("the file is too large for a secret"));
            }
            std::fs::read_to_string(path)
        };
        read().map_err(|error: std::io::Error| error.to_string())
    }
}

/// Reads a file and resolves its secrets. Relative secret files are taken from the file's own folder.
///
/// # Errors
/// [`DocumentError`], naming every secret that cannot be resolved.
pub fn load(path: &Path, secrets: &dyn Secrets) -> Result<Loaded, DocumentError> {
    let read_error = |source| DocumentError::Read {
        path: path.to_owned(),
        source,
    };
    if std::fs::metadata(path).map_err(read_error)?.len() > MAX_FILE_BYTES {
        return Err(DocumentError::TooLarge {
            path: path.to_owned(),
        });
    }
    let text = std::fs::read_to_string(path).map_err(read_error)?;
    let document = parse(&text).map_err(|error| match error {
        DocumentError::Syntax(message) => {
            DocumentError::Syntax(format!("{}: {message}", path.display()))
        }
        other => other,
    })?;
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    resolve(document, folder, secrets).map_err(DocumentError::Secrets)
}

/// Reads YAML (JSON is YAML, too) strictly. An empty text is an empty document.
///
/// # Errors
/// [`DocumentError::Syntax`] with line and column, [`DocumentError::Settings`] with the path of each fault.
pub fn parse(text: &str) -> Result<Document, DocumentError> {
    if text.trim().is_empty() {
        return Ok(Document::default());
    }
    // Without the source line: where a secret stands by mistake, it must not be repeated.
    let document: Document = serde_saphyr::from_str(text)
        .map_err(|error| DocumentError::Syntax(error.without_snippet().to_string()))?;
    match document.settings.strict() {
        Ok(_) => Ok(document),
        Err(violations) => Err(DocumentError::Settings(
            violations
                .into_iter()
                .map(|violation| Violation {
                    field: format!("settings.{}", violation.field),
                    message: violation.message,
                })
                .collect(),
        )),
    }
}

/// Resolves every secret the document refers to.
///
/// # Errors
/// All references that cannot be resolved; never what they hold.
pub fn resolve(
    mut document: Document,
    folder: &Path,
    secrets: &dyn Secrets,
) -> Result<Loaded, Vec<Violation>> {
    let mut violations = Vec::new();
    let mut credentials = BTreeMap::new();
    let mut refresh_tokens = BTreeMap::new();
    let mut client_secrets = BTreeMap::new();
    for (index, connection) in document.connections.iter().enumerate() {
        let members = [
            ("credential", &connection.credential, &mut credentials),
            (
                "refreshToken",
                &connection.refresh_token,
                &mut refresh_tokens,
            ),
            (
                "clientSecret",
                &connection.client_secret,
                &mut client_secrets,
            ),
        ];
        for (member, source, resolved) in members {
            let Some(source) = source else {
                continue;
            };
            match read(source, folder, secrets) {
                Ok(secret) => {
                    resolved.insert(connection.id.clone(), secret);
                }
                Err(message) => violations.push(Violation {
                    field: format!("connections[{index}].{member}"),
                    message,
                }),
            }
        }
    }
    for (index, key) in document.keys.iter_mut().enumerate() {
        let Some(source) = &key.secret else {
            continue;
        };
        if key.sha256.is_some() {
            violations.push(Violation {
                field: format!("keys[{index}]"),
                message: "give either secret or sha256, not both".to_owned(),
            });
            continue;
        }
        match read(source, folder, secrets) {
            Ok(secret) => {
                key.sha256 = Some(key_hash(secret.expose_secret()));
                key.secret = None;
            }
            Err(message) => violations.push(Violation {
                field: format!("keys[{index}].secret"),
                message,
            }),
        }
    }
    if !violations.is_empty() {
        return Err(violations);
    }
    Ok(Loaded {
        document,
        credentials,
        refresh_tokens,
        client_secrets,
    })
}

fn read(
    source: &SecretSource,
    folder: &Path,
    secrets: &dyn Secrets,
) -> Result<SecretString, String> {
    let (text, place) = match source {
        SecretSource::Env(name) => {
            let place = format!("the environment variable {name}");
            let text = secrets
                .variable(name)
                .ok_or_else(|| format!("{place} is not set"))?;
            (text, place)
        }
        SecretSource::File(path) => {
            let place = format!("the file {path}");
            let text = secrets
                .file(&folder.join(path))
                .map_err(|error| format!("{place}: {error}"))?;
            (text, place)
        }
    };
    let secret = text.trim();
    if secret.is_empty() {
        return Err(format!("{place} is empty"));
    }
    if secret.chars().any(char::is_control) {
        return Err(format!("{place} holds a control character"));
    }
    Ok(SecretString::from(secret))
}

#[cfg(test)]
mod tests;
