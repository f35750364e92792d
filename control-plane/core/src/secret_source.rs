//! Where a secret is read from. Written as `{env: NAME}` or `{file: PATH}`.
//!
//! Reading is by hand, because the derived form repeats a value it does not understand in its error, and the
//! value most likely to stand here by mistake is the secret itself.

use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Where a secret is read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum SecretSource {
    /// An environment variable.
    Env(String),
    /// A file; surrounding white space is cut off.
    File(String),
}

const EXPECTED: &str = "expected {env: NAME} or {file: PATH}, not the secret itself";

impl<'de> Deserialize<'de> for SecretSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SourceVisitor)
    }
}

struct SourceVisitor;

impl<'de> Visitor<'de> for SourceVisitor {
    type Value = SecretSource;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("{env: NAME} or {file: PATH}")
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<SecretSource, E> {
        Err(E::custom(EXPECTED))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<SecretSource, A::Error> {
        let source = match members.next_entry::<String, String>()? {
            Some((kind, name)) if kind == "env" => SecretSource::Env(name),
            Some((kind, path)) if kind == "file" => SecretSource::File(path),
            Some(_) | None => return Err(de::Error::custom(EXPECTED)),
        };
        if members.next_key::<String>()?.is_some() {
            return Err(de::Error::custom("expected only one of env and file"));
        }
        Ok(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_being_written() {
        for source in [
            SecretSource::Env("KEY".to_owned()),
            SecretSource::File("key.txt".to_owned()),
        ] {
            let text = serde_json::to_string(&source).unwrap();
            assert_eq!(serde_json::from_str::<SecretSource>(&text).unwrap(), source);
        }
    }

    #[test]
    fn a_secret_in_the_wrong_place_is_not_repeated() {
        for text in [
            "\"sk-secret\"",
            "{\"sk-secret\": \"x\"}",
            "{\"env\": \"A\", \"file\": \"sk-secret\"}",
            "{}",
        ] {
            let error = serde_json::from_str::<SecretSource>(text).unwrap_err();
            assert!(!error.to_string().contains("sk-secret"), "{error}");
        }
    }
}
