//! Which members of a connection somebody wants to see (`google.protobuf.FieldMask`).

use std::collections::BTreeSet;

use prost_types::FieldMask;
use tidegate_proto::admin::v1::ConnectionStatus;
use tonic::Status;

use super::error::invalid_member;

/// Most paths of a mask: more than there are members.
const MAX_PATHS: usize = 64;

/// The members to show; none: all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mask(Option<BTreeSet<&'static str>>);

/// A member of [`ConnectionStatus`] by its name, and how it is copied.
macro_rules! members {
    ($($name:ident),+ $(,)?) => {
        const MEMBERS: &[&str] = &[$(stringify!($name)),+];

        /// Only the members that are shown; the others are as if they were unset.
        fn shown(full: ConnectionStatus, shows: impl Fn(&str) -> bool) -> ConnectionStatus {
            // Names every member, so that a new one cannot be forgotten.
            let ConnectionStatus { $($name),+ } = full;
            ConnectionStatus {
                $($name: if shows(stringify!($name)) { $name } else { Default::default() }),+
            }
        }
    };
}

members!(
    id,
    provider,
    priority,
    state,
    cooldown_remaining_ms,
    backoff_level,
    last_error_status,
    last_error_reason,
    last_error_unix_ms,
    credential_version,
    locked_models,
    cooldown_until_unix_ms,
    rule,
    original_status,
    terminal,
    gate_remaining_ms,
    gate_failure_count,
    effective_until_unix_ms,
    token,
);

impl Mask {
    /// Reads what was asked for. A member that does not exist is refused.
    pub(super) fn read(asked: Option<&FieldMask>) -> Result<Self, Status> {
        let Some(asked) = asked else {
            return Ok(Self(None));
        };
        if asked.paths.len() > MAX_PATHS {
            let message = format!("read_mask must have at most {MAX_PATHS} paths");
            return Err(invalid_member("read_mask", message));
        }
        let mut members = BTreeSet::new();
        for path in &asked.paths {
            // `*` is every member (AIP-157).
            if path == "*" {
                return Ok(Self(None));
            }
            let Some(member) = MEMBERS.iter().find(|member| *member == path) else {
                let message = format!("read_mask: there is no member {path}");
                return Err(invalid_member("read_mask", message));
            };
            members.insert(*member);
        }
        // An empty mask is as good as none.
        Ok(Self(Some(members).filter(|members| !members.is_empty())))
    }

    /// Whether a member is wanted.
    pub(super) fn shows(&self, member: &str) -> bool {
        self.0.as_ref().is_none_or(|it| it.contains(member))
    }

    /// Takes what is not wanted away.
    pub(super) fn apply(&self, connection: &mut ConnectionStatus) {
        if self.0.is_some() {
            let full = std::mem::take(connection);
            *connection = shown(full, |member| self.shows(member));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(paths: &[&str]) -> Result<Mask, Status> {
        Mask::read(Some(&FieldMask {
            paths: paths.iter().map(|it| (*it).to_owned()).collect(),
        }))
    }

    fn full() -> ConnectionStatus {
        ConnectionStatus {
            id: "a".to_owned(),
            provider: "one".to_owned(),
            state: "active".to_owned(),
            locked_models: 3,
            ..ConnectionStatus::default()
        }
    }

    #[test]
    fn only_what_is_asked_for_is_left() {
        let mut connection = full();
        mask(&["state", "id", "id"]).unwrap().apply(&mut connection);
        let expected = ConnectionStatus {
            id: "a".to_owned(),
            state: "active".to_owned(),
            ..ConnectionStatus::default()
        };
        assert_eq!(connection, expected);
    }

    #[test]
    fn no_mask_an_empty_one_and_a_star_show_everything() {
        for all in [Mask::read(None), mask(&[]), mask(&["id", "*"])] {
            let mut connection = full();
            all.unwrap().apply(&mut connection);
            assert_eq!(connection, full());
        }
    }

    #[test]
    fn a_member_that_does_not_exist_is_refused_by_name() {
        let refused = mask(&["id", "secret"]).unwrap_err();
        assert!(refused.message().contains("secret"), "{refused:?}");
        assert!(mask(&["id"; MAX_PATHS + 1]).is_err());
    }
}
