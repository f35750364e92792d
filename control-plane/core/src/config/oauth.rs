//! How a provider renews access tokens: the refresh-token grant of OAuth 2.0 (RFC 6749 §6, decision 15).

use serde::{Deserialize, Serialize};

use super::{Violations, base_url};

/// Longest client id and scope, in bytes.
const MAX_TEXT_BYTES: usize = 2_048;

/// `oauth` of a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OauthClient {
    /// `https://`, or `http://` to a loopback address.
    pub token_endpoint: String,
    /// The client that tokens are issued to, where a connection names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// How a client with a secret shows it.
    #[serde(default)]
    pub client_authentication: ClientAuthentication,
    /// Scope that is asked for; unset = that of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// How a client with a secret shows it (RFC 6749 §2.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ClientAuthentication {
    /// In the `Authorization` header.
    #[default]
    ClientSecretBasic,
    /// In the body.
    ClientSecretPost,
}

impl OauthClient {
    /// Adds what is wrong with it.
    pub(super) fn check(&self, path: &str, found: &mut Violations) {
        let field = |member: &str| format!("{path}.{member}");
        base_url::check_endpoint(field("tokenEndpoint"), &self.token_endpoint, found);
        let texts = [("clientId", &self.client_id), ("scope", &self.scope)];
        for (member, text) in texts {
            if let Some(text) = text {
                check_text(field(member), text, found);
            }
        }
    }
}

/// Adds a violation unless the text has what client ids and scopes are made of (RFC 6749 appendix A.1, A.4).
pub(super) fn check_text(field: String, text: &str, found: &mut Violations) {
    let printable = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    if text.is_empty() || text.len() > MAX_TEXT_BYTES || !printable {
        found.push(field, "must have 1 to 2048 printable ASCII characters");
    }
}
