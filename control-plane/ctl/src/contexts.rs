//! Contexts: control planes by name, in a file of one's own. It holds no secret, only where a token is.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Names another file.
const FILE_VARIABLE: &str = "TIDEGATE_CTL_CONFIG";
/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 1024 * 1024;

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Contexts {
    /// Which is used where none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    /// In the order in which they were made.
    pub(crate) contexts: Vec<Context>,
}

/// One control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Context {
    pub(crate) name: String,
    /// As http://host:port or https://host:port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) control_plane: Option<String>,
    /// File that holds the bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    /// PEM file with who signed its certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
    /// PEM file with the certificate that is shown to it. With `key_file` or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cert_file: Option<PathBuf>,
    /// PEM file with the key of that certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<PathBuf>,
    /// Name that its certificate must bear, where that is not the host of its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_domain: Option<String>,
}

impl Contexts {
    /// Where the file is: `TIDEGATE_CTL_CONFIG`, else below the folder for configuration of the user.
    pub(crate) fn path() -> Option<PathBuf> {
        let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let below = |folder: PathBuf| folder.join("tidegate").join("ctl.yaml");
        of(FILE_VARIABLE)
            .map(PathBuf::from)
            .or_else(|| of("XDG_CONFIG_HOME").map(|it| below(it.into())))
            .or_else(|| of("HOME").map(|it| below(PathBuf::from(it).join(".config"))))
    }

    /// What the file says; nothing where there is none.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let fault = |error: String| Failure::Input(format!("{}: {error}", path.display()));
        match fs::metadata(path) {
            Ok(found) if found.len() > MAX_BYTES => {
                return Err(fault(format!("is larger than {MAX_BYTES} bytes")));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(fault(error.to_string())),
        }
        let text = fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(&text).map_err(|error| fault(error.to_string()))
    }

    /// Replaces the file, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let fault = |error: String| Failure::Output(format!("{}: {error}", path.display()));
        let text = serde_saphyr::to_string(self).map_err(|error| fault(error.to_string()))?;
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        fs::create_dir_all(folder).map_err(|error| fault(error.to_string()))?;
        let new = path.with_extension("new");
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, path)
        };
        write().map_err(|error| fault(error.to_string()))
    }

    /// The context of this name, else the current one, if there is one.
    pub(crate) fn chosen(&self, name: Option<&str>) -> Result<Option<&Context>, Failure> {
        let Some(name) = name.or(self.current.as_deref()) else {
            return Ok(None);
        };
        let found = self.contexts.iter().find(|it| it.name == name);
        found.map(Some).ok_or_else(|| unknown(name))
    }

    /// Makes a context, or changes the members that are given. The first one becomes the current one.
    pub(crate) fn set(&mut self, given: Context) {
        match self.contexts.iter_mut().find(|it| it.name == given.name) {
            Some(known) => {
                known.control_plane = given.control_plane.or_else(|| known.control_plane.take());
                known.token_file = given.token_file.or_else(|| known.token_file.take());
                known.ca_file = given.ca_file.or_else(|| known.ca_file.take());
                known.cert_file = given.cert_file.or_else(|| known.cert_file.take());
                known.key_file = given.key_file.or_else(|| known.key_file.take());
                known.tls_domain = given.tls_domain.or_else(|| known.tls_domain.take());
            }
            None => {
                self.current.get_or_insert_with(|| given.name.clone());
                self.contexts.push(given);
            }
        }
    }

    /// Makes a context the current one.
    pub(crate) fn choose(&mut self, name: String) -> Result<(), Failure> {
        if self.contexts.iter().all(|it| it.name != name) {
            return Err(unknown(&name));
        }
        self.current = Some(name);
        Ok(())
    }

    /// Forgets a context; if it was the current one, there is none.
    pub(crate) fn delete(&mut self, name: &str) -> Result<(), Failure> {
        let before = self.contexts.len();
        self.contexts.retain(|it| it.name != name);
        if self.contexts.len() == before {
            return Err(unknown(name));
        }
        if self.current.as_deref() == Some(name) {
            self.current = None;
        }
        Ok(())
    }
}

fn unknown(name: &str) -> Failure {
    Failure::Input(format!("there is no context {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(name: &str, control_plane: Option<&str>) -> Context {
        Context {
            name: name.to_owned(),
            control_plane: control_plane.map(str::to_owned),
            ..Context::default()
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_one_that_is_missing_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("ctl.yaml");
        assert_eq!(Contexts::read(Some(&path)).unwrap(), Contexts::default());
        let mut contexts = Contexts::default();
        contexts.set(context("here", None));
        contexts.set(Context {
            token_file: Some("/run/token".into()),
            ca_file: Some("/etc/ca.pem".into()),
            cert_file: Some("/etc/me.pem".into()),
            key_file: Some("/etc/me.key".into()),
            tls_domain: Some("cp.internal".to_owned()),
            ..context("there", Some("https://cp:7400"))
        });
        contexts.write(&path).unwrap();
        assert_eq!(Contexts::read(Some(&path)).unwrap(), contexts);
        contexts.write(&path).unwrap();
        fs::write(&path, "contexts: [{name: a, token: secret}]").unwrap();
        let refused = Contexts::read(Some(&path)).unwrap_err();
        assert_eq!(refused.exit_code(), 65);
    }

    #[test]
    fn the_named_context_is_used_else_the_current_one_else_none() {
        let mut contexts = Contexts::default();
        assert!(contexts.chosen(None).unwrap().is_none());
        assert!(contexts.chosen(Some("a")).is_err());
        contexts.set(context("a", Some("http://a:1")));
        contexts.set(context("b", Some("http://b:1")));
        let name = |contexts: &Contexts, name| {
            let chosen = contexts.chosen(name).unwrap();
            chosen.unwrap().name.clone()
        };
        assert_eq!(name(&contexts, None), "a");
        assert_eq!(name(&contexts, Some("b")), "b");
        contexts.choose("b".to_owned()).unwrap();
        assert_eq!(name(&contexts, None), "b");
        assert!(contexts.choose("c".to_owned()).is_err());
        contexts.delete("b").unwrap();
        assert!(contexts.chosen(None).unwrap().is_none());
        assert!(contexts.delete("b").is_err());
    }

    #[test]
    fn setting_a_context_again_changes_what_is_given() {
        let mut contexts = Contexts::default();
        contexts.set(context("a", Some("http://a:1")));
        contexts.set(Context {
            token_file: Some("t".into()),
            ..context("a", None)
        });
        contexts.set(Context {
            cert_file: Some("c".into()),
            key_file: Some("k".into()),
            tls_domain: Some("d".to_owned()),
            ..context("a", None)
        });
        let expected = Context {
            token_file: Some("t".into()),
            cert_file: Some("c".into()),
            key_file: Some("k".into()),
            tls_domain: Some("d".to_owned()),
            ..context("a", Some("http://a:1"))
        };
        assert_eq!(contexts.contexts, [expected]);
    }
}
