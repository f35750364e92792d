//! Who calls, and what they may do.
//!
//! A bearer token is one of three given at start (data planes, operators, readers), or an API key of the configuration in
//! force with the scope `manage` or `manage:read`. What a call needs is for the caller of [`Access::admit`] to say; it is
//! told who calls, or why nobody may.
//!
//! **Stance:** fail-closed. What is not known is refused, and so is a known token for what it does not cover. Only where no
//! token of a kind is configured, calls of that kind are open to everybody, which the server allows on loopback listeners
//! only ([`crate::plane::ListenError`]). **Staleness:** API keys are those of the configuration in force here.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Digest, SHA256, digest};
use secrecy::{ExposeSecret as _, SecretString};
use tidegate_core::config::key_hash;
use tidegate_core::ids::KeyId;
use tokio::sync::watch;

use crate::config::Published;
use crate::plane::Tokens;
use crate::telemetry::metrics::Metrics;

const SCHEME: &str = "bearer ";

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: it tells nobody anything of value.
    Nothing,
    /// Any token that is known here, whatever it is for.
    Known,
    /// To be a data plane.
    DataPlane,
    /// To look at configuration and state.
    Read,
    /// To change configuration or state.
    Manage,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Somebody on this machine who showed nothing, since nothing is asked for.
    Local,
    /// A data plane.
    DataPlane,
    /// Who has the token of operators.
    Operator,
    /// Who has the token of readers.
    Reader,
    /// Who has an API key.
    Key(KeyId),
}

impl fmt::Display for Caller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => formatter.write_str("local"),
            Self::DataPlane => formatter.write_str("data plane"),
            Self::Operator => formatter.write_str("admin"),
            Self::Reader => formatter.write_str("reader"),
            Self::Key(key) => write!(formatter, "key {key}"),
        }
    }
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    /// Nothing was shown, or what nobody knows.
    #[error("a valid bearer token is needed")]
    Unknown,
    /// What was shown is known, but not enough.
    #[error("the token is good, but not for this: {0}")]
    NotAllowed(&'static str),
}

/// What is asked of callers.
#[derive(Clone)]
pub(crate) struct Access {
    tokens: Arc<Digests>,
    config: Arc<Published>,
    metrics: Arc<Metrics>,
}

/// The right of a caller to look, for a call that goes on while the configuration changes. Tokens given at start stay as
/// long as this replica runs; only a key may lose its scope, its hash or all of itself.
#[derive(Debug)]
pub(crate) struct Right {
    /// Hash of the caller's key.
    hash: Option<String>,
    config: Arc<Published>,
    versions: watch::Receiver<Option<u64>>,
}

impl Right {
    /// As the configuration stands now.
    pub(crate) fn to_read(caller: Caller, config: Arc<Published>) -> Result<Self, Denied> {
        let versions = config.subscribe();
        let hash = match caller {
            Caller::Key(id) => {
                let now = config.config().ok_or(Denied::Unknown)?;
                let found = now.keys.iter().find(|(_, key)| key.id == id);
                Some(found.ok_or(Denied::Unknown)?.0.clone())
            }
            Caller::Local | Caller::DataPlane | Caller::Operator | Caller::Reader => None,
        };
        Ok(Self {
            hash,
            config,
            versions,
        })
    }

    /// Waits until the right is gone. May be dropped and called again.
    pub(crate) async fn is_lost(&mut self) -> Denied {
        let Some(hash) = &self.hash else {
            return std::future::pending().await;
        };
        loop {
            let config = self.config.config();
            let stands = config.as_ref().and_then(|it| it.key_by_hash(hash));
            match stands {
                None => return Denied::Unknown,
                Some(stands) if !stands.may_read_management() => {
                    return Denied::NotAllowed(missing(Need::Read));
                }
                Some(_) => {}
            }
            if self.versions.changed().await.is_err() {
                return Denied::Unknown;
            }
        }
    }
}

/// Digests of tokens, so that comparing takes the same time whatever is sent.
struct Digests {
    data_plane: Option<Digest>,
    operator: Option<Digest>,
    reader: Option<Digest>,
}

impl fmt::Debug for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Access")
            .field("asks_data_planes", &self.tokens.data_plane.is_some())
            .field("asks_operators", &self.tokens.asks_operators())
            .finish_non_exhaustive()
    }
}

impl Digests {
    fn asks_operators(&self) -> bool {
        self.operator.is_some() || self.reader.is_some()
    }

    /// What a call needs is open to everybody.
    fn is_open(&self, need: Need) -> bool {
        match need {
            Need::Nothing => true,
            Need::DataPlane => self.data_plane.is_none(),
            // Data planes ask for nothing that needs any token.
            Need::Known | Need::Read | Need::Manage => !self.asks_operators(),
        }
    }

    /// Which of the tokens it is. Where one token stands for several kinds, it may do what each of them may.
    fn callers(&self, given: &Digest) -> impl Iterator<Item = Caller> {
        [
            (&self.operator, Caller::Operator),
            (&self.reader, Caller::Reader),
            (&self.data_plane, Caller::DataPlane),
        ]
        .into_iter()
        .filter_map(move |(wanted, caller)| {
            let wanted = wanted.as_ref()?.as_ref();
            verify_slices_are_equal(wanted, given.as_ref())
                .is_ok()
                .then_some(caller)
        })
    }
}

impl Access {
    pub(crate) fn new(tokens: &Tokens, config: Arc<Published>, metrics: Arc<Metrics>) -> Self {
        let of = |token: &Option<SecretString>| {
            let token = token.as_ref()?;
            Some(digest(&SHA256, token.expose_secret().as_bytes()))
        };
        Self {
            tokens: Arc::new(Digests {
                data_plane: of(&tokens.data_plane),
                operator: of(&tokens.admin),
                reader: of(&tokens.reader),
            }),
            config,
            metrics,
        }
    }

    /// A call was refused.
    pub(crate) fn count(&self, denied: Denied) {
        self.metrics.admin.denied(denied);
    }

    /// Who calls, if they may. `authorization` is the header as it came.
    pub(crate) fn admit(&self, need: Need, authorization: Option<&str>) -> Result<Caller, Denied> {
        if self.tokens.is_open(need) {
            return Ok(Caller::Local);
        }
        self.admit_shown(need, authorization)
    }

    /// The same for those who may come from anywhere, such as clients of a data plane, or a page in a browser on this
    /// machine: they show who they are also where tokens are not configured.
    pub(crate) fn admit_shown(
        &self,
        need: Need,
        authorization: Option<&str>,
    ) -> Result<Caller, Denied> {
        let token = authorization
            .and_then(bearer_token)
            .ok_or(Denied::Unknown)?;
        let given = digest(&SHA256, token.as_bytes());
        let mut known = false;
        for caller in self.tokens.callers(&given) {
            known = true;
            if caller.may(need) {
                return Ok(caller);
            }
        }
        if known {
            return Err(Denied::NotAllowed(missing(need)));
        }
        self.admit_key(need, token)
    }

    fn admit_key(&self, need: Need, token: &str) -> Result<Caller, Denied> {
        let config = self.config.config().ok_or(Denied::Unknown)?;
        let key = config
            .key_by_hash(&key_hash(token))
            .ok_or(Denied::Unknown)?;
        let may = match need {
            Need::Nothing => true,
            Need::Known | Need::Read => key.may_read_management(),
            Need::Manage => key.may_manage(),
            Need::DataPlane => false,
        };
        if may {
            Ok(Caller::Key(key.id.clone()))
        } else {
            Err(Denied::NotAllowed(missing(need)))
        }
    }
}

impl Caller {
    /// What one of the tokens given at start allows; keys have scopes, and who shows nothing is never asked.
    fn may(&self, need: Need) -> bool {
        match need {
            Need::Nothing => true,
            Need::Known => matches!(self, Self::Operator | Self::Reader | Self::DataPlane),
            Need::DataPlane => matches!(self, Self::DataPlane),
            Need::Read => matches!(self, Self::Operator | Self::Reader),
            Need::Manage => matches!(self, Self::Operator),
        }
    }
}

/// What would have been needed, for people.
fn missing(need: Need) -> &'static str {
    match need {
        Need::Nothing | Need::Known => "it has no scope of administration",
        Need::DataPlane => "it is not that of data planes",
        Need::Read => "it lacks the scope manage:read or manage",
        Need::Manage => "it lacks the scope manage",
    }
}

/// The token of an `Authorization` header (RFC 6750 §2.1).
fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token.trim())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::right("Bearer secret", Some("secret"))]
    #[case::scheme_in_any_case("bEARER  secret ", Some("secret"))]
    #[case::without_scheme("secret", None)]
    #[case::other_scheme("Basic secret", None)]
    #[case::not_on_a_character_boundary("Beare\u{20ac}secret", None)]
    #[case::empty("", None)]
    fn a_token_is_read_from_its_header(#[case] header: &str, #[case] token: Option<&str>) {
        assert_eq!(bearer_token(header), token);
    }

    fn digests(data_plane: Option<&str>, operator: Option<&str>, reader: Option<&str>) -> Digests {
        let of = |token: Option<&str>| token.map(|token| digest(&SHA256, token.as_bytes()));
        Digests {
            data_plane: of(data_plane),
            operator: of(operator),
            reader: of(reader),
        }
    }

    #[rstest]
    #[case::no_token_at_all(digests(None, None, None), [true; 5])]
    #[case::data_planes_only(digests(Some("p"), None, None), [true, true, false, true, true])]
    #[case::operators_only(digests(None, Some("o"), None), [true, false, true, false, false])]
    #[case::readers_close_changes_too(digests(Some("p"), None, Some("r")), [true, false, false, false, false])]
    #[case::all(digests(Some("p"), Some("o"), Some("r")), [true, false, false, false, false])]
    fn calls_are_open_only_without_a_token_of_their_kind(
        #[case] digests: Digests,
        #[case] open: [bool; 5],
    ) {
        let needs = [
            Need::Nothing,
            Need::Known,
            Need::DataPlane,
            Need::Read,
            Need::Manage,
        ];
        assert_eq!(needs.map(|need| digests.is_open(need)), open);
    }

    #[test]
    fn a_token_that_stands_for_several_kinds_may_do_what_each_may() {
        let digests = digests(Some("same"), Some("same"), Some("r"));
        let of = |token: &str| -> Vec<Caller> {
            let given = digest(&SHA256, token.as_bytes());
            digests.callers(&given).collect()
        };
        assert_eq!(of("same"), [Caller::Operator, Caller::DataPlane]);
        assert_eq!(of("r"), [Caller::Reader]);
        assert_eq!(of("sam"), []);
    }
}
