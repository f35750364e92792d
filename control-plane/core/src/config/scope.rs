//! What an API key may do besides asking for answers.

use serde::{Deserialize, Serialize};

use crate::lease::LeaseKey;

use super::ApiKey;

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum KeyScope {
    /// Its sessions may lease connections, and ask for answers under a lease only; the key must name its connections
    /// (`sessions-and-streams.md` §1.2).
    #[serde(rename = "lease:exclusive")]
    ExclusiveLease,
    /// Who shows it may administer, as with the token of operators (`sessions-and-streams.md` §5.5).
    #[serde(rename = "manage")]
    Manage,
    /// Who shows it may look at everything that administration shows, and change nothing.
    #[serde(rename = "manage:read")]
    ManageRead,
}

impl KeyScope {
    /// All scopes.
    pub const ALL: [Self; 3] = [Self::ExclusiveLease, Self::Manage, Self::ManageRead];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExclusiveLease => "lease:exclusive",
            Self::Manage => "manage",
            Self::ManageRead => "manage:read",
        }
    }

    /// The scope of a word, if there is one.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == word)
    }
}

impl std::fmt::Display for KeyScope {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl ApiKey {
    /// It has the scope `lease:exclusive`: its requests are managed.
    #[must_use]
    pub fn may_lease(&self) -> bool {
        self.scopes.contains(&KeyScope::ExclusiveLease)
    }

    /// It has the scope `manage`.
    #[must_use]
    pub fn may_manage(&self) -> bool {
        self.scopes.contains(&KeyScope::Manage)
    }

    /// It has the scope `manage` or `manage:read`.
    #[must_use]
    pub fn may_read_management(&self) -> bool {
        self.may_manage() || self.scopes.contains(&KeyScope::ManageRead)
    }

    /// What leases look at of it.
    #[must_use]
    pub fn leasing(&self) -> LeaseKey<'_> {
        LeaseKey {
            id: &self.id,
            exclusive: self.may_lease(),
            allowed_connections: &self.allowed_connections,
        }
    }
}
