//! What the bodies of management requests say. Strict, as the settings are: what is not understood is refused with its
//! place, since a wrong word must not reset more than was meant.

use serde_json::{Map, Value};

use crate::config::{Violation, Violations};
use crate::ids::{ConnectionId, ModelId, NameError, ProviderId};

use super::ResetScope;

const NO_SUCH_MEMBER: &str = "there is no such member";

/// Why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadRequest {
    /// The whole, for people.
    pub message: String,
    /// Every member that is wrong; none when it is no such body at all.
    pub details: Vec<Violation>,
}

/// `POST /api/resilience/reset` (decision 24).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reset {
    /// What ends.
    pub scope: ResetScope,
    /// Only of this provider.
    pub provider: Option<ProviderId>,
    /// Only of this connection, its terminal state included.
    pub connection: Option<ConnectionId>,
}

/// `DELETE /api/resilience/model-cooldowns` (`failure-state.md` §4.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClearLockouts {
    /// Every lock there is.
    All,
    /// Locks of one model.
    Of {
        /// Its provider.
        provider: ProviderId,
        /// On this connection; without it, on every one of the provider.
        connection: Option<ConnectionId>,
        /// The model.
        model: ModelId,
    },
}

/// Reads what is to be reset; an empty body means every breaker. A connection has none: where one is named without a scope,
/// everything is meant that it has.
///
/// # Errors
/// Everything in it that is not understood.
pub fn read_reset(body: &[u8]) -> Result<Reset, BadRequest> {
    if body.trim_ascii().is_empty() {
        return Ok(Reset::default());
    }
    let members = object(body)?;
    let mut found = Violations::default();
    unknown(&members, &["scope", "provider", "connection"], &mut found);
    let scope = match text(&members, "scope", &mut found).map(ResetScope::of_word) {
        None => None,
        Some(Some(scope)) => Some(scope),
        Some(None) => {
            let words = "must be `breakers`, `cooldowns`, `lockouts` or `all`";
            found.push("scope", words);
            None
        }
    };
    let provider = name(&members, "provider", ProviderId::new, &mut found);
    let connection = name(&members, "connection", ConnectionId::new, &mut found);
    let whole = connection.is_some().then_some(ResetScope::All);
    let scope = scope.or(whole).unwrap_or_default();
    finish(
        found,
        Reset {
            scope,
            provider,
            connection,
        },
    )
}

/// Reads which locks are to end. The connection may be called `connection` or `connectionId`.
///
/// # Errors
/// Everything in it that is not understood, or missing.
pub fn read_clear(body: &[u8]) -> Result<ClearLockouts, BadRequest> {
    let members = object(body)?;
    let mut found = Violations::default();
    let known = ["all", "provider", "connection", "connectionId", "model"];
    unknown(&members, &known, &mut found);
    match members.get("all") {
        None | Some(Value::Null | Value::Bool(false)) => {}
        Some(Value::Bool(true)) => {
            for member in known.iter().skip(1) {
                if members.get(*member).is_some_and(|value| !value.is_null()) {
                    found.push(*member, "must be missing where `all` is true");
                }
            }
            return finish(found, ClearLockouts::All);
        }
        Some(_) => found.push("all", "must be true or false"),
    }
    let provider = name(&members, "provider", ProviderId::new, &mut found);
    let model = name(&members, "model", ModelId::new, &mut found);
    let connection = name(&members, "connection", ConnectionId::new, &mut found);
    let connection_id = name(&members, "connectionId", ConnectionId::new, &mut found);
    if let (Some(one), Some(other)) = (&connection, &connection_id)
        && one != other
    {
        found.push("connectionId", "names another one than `connection`");
    }
    for (member, is_there) in [("provider", provider.is_some()), ("model", model.is_some())] {
        let is_missing = members.get(member).is_none_or(Value::is_null);
        if !is_there && is_missing {
            found.push(member, "is missing");
        }
    }
    let (Some(provider), Some(model)) = (provider, model) else {
        return Err(refused(found.into_vec()));
    };
    finish(
        found,
        ClearLockouts::Of {
            provider,
            connection: connection.or(connection_id),
            model,
        },
    )
}

/// Reads a patch of settings, whose members are for [`crate::settings::WrittenSettings::patched`] to judge.
///
/// # Errors
/// It is no JSON object.
pub fn read_patch(body: &[u8]) -> Result<Map<String, Value>, BadRequest> {
    object(body)
}

fn object(body: &[u8]) -> Result<Map<String, Value>, BadRequest> {
    serde_json::from_slice(body).map_err(|error| {
        // Not its text, which repeats what was sent, however long.
        let (line, column) = (error.line(), error.column());
        BadRequest {
            message: format!("the body must be one JSON object (line {line}, column {column})"),
            details: Vec::new(),
        }
    })
}

fn unknown(members: &Map<String, Value>, known: &[&str], found: &mut Violations) {
    for member in members.keys() {
        if !known.contains(&member.as_str()) {
            found.push(member.as_str(), NO_SUCH_MEMBER);
        }
    }
}

fn text<'a>(
    members: &'a Map<String, Value>,
    member: &str,
    found: &mut Violations,
) -> Option<&'a str> {
    match members.get(member) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => {
            found.push(member, "must be a text");
            None
        }
    }
}

fn name<'a, T>(
    members: &'a Map<String, Value>,
    member: &str,
    make: impl FnOnce(&'a str) -> Result<T, NameError>,
    found: &mut Violations,
) -> Option<T> {
    match make(text(members, member, found)?) {
        Ok(name) => Some(name),
        Err(error) => {
            found.push(member, error.to_string());
            None
        }
    }
}

fn finish<T>(found: Violations, read: T) -> Result<T, BadRequest> {
    if found.is_empty() {
        Ok(read)
    } else {
        Err(refused(found.into_vec()))
    }
}

fn refused(details: Vec<Violation>) -> BadRequest {
    let message = match details.first() {
        Some(first) if first.field.is_empty() => first.message.clone(),
        Some(first) => format!("{}: {}", first.field, first.message),
        None => "the body is not understood".to_owned(),
    };
    BadRequest { message, details }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn provider() -> ProviderId {
        ProviderId::new("p").unwrap()
    }

    fn connection() -> ConnectionId {
        ConnectionId::new("c").unwrap()
    }

    #[rstest]
    #[case::nothing("", Reset::default())]
    #[case::white_space(" \r\n", Reset::default())]
    #[case::no_member("{}", Reset::default())]
    #[case::nulls(
        r#"{"scope":null,"provider":null,"connection":null}"#,
        Reset::default()
    )]
    #[case::all(
        r#"{"scope":"all","provider":"p","connection":"c"}"#,
        Reset { scope: ResetScope::All, provider: Some(provider()), connection: Some(connection()) },
    )]
    #[case::a_connection(
        r#"{"connection":"c"}"#,
        Reset { scope: ResetScope::All, connection: Some(connection()), ..Reset::default() },
    )]
    #[case::breakers_of_a_connection(
        r#"{"scope":"breakers","connection":"c"}"#,
        Reset { connection: Some(connection()), ..Reset::default() },
    )]
    #[case::lockouts(
        r#"{"scope":"lockouts"}"#,
        Reset { scope: ResetScope::Lockouts, ..Reset::default() },
    )]
    fn resets_are_read(#[case] body: &str, #[case] expected: Reset) {
        assert_eq!(read_reset(body.as_bytes()), Ok(expected));
    }

    #[rstest]
    #[case::no_json("x", &[])]
    #[case::cut_off(r#"{"scope":"all""#, &[])]
    #[case::a_list("[]", &[])]
    #[case::more_behind("{} {}", &[])]
    #[case::not_a_text(r#"{"scope":1,"provider":[]}"#, &["scope", "provider"])]
    #[case::unknown_scope(r#"{"scope":"ALL"}"#, &["scope"])]
    #[case::unknown_member(r#"{"scop":"lockouts","model":"m"}"#, &["model", "scop"])]
    #[case::no_name(r#"{"provider":"","connection":"a b"}"#, &["provider", "connection"])]
    fn resets_that_are_not_understood_are_refused(#[case] body: &str, #[case] fields: &[&str]) {
        assert_eq!(refused_fields(read_reset(body.as_bytes())), fields);
    }

    #[rstest]
    #[case::all(json!({"all": true}), ClearLockouts::All)]
    #[case::all_and_nulls(json!({"all": true, "model": null}), ClearLockouts::All)]
    #[case::of_the_provider(json!({"provider": "p", "model": "m"}), of(None))]
    #[case::of_a_connection(json!({"provider": "p", "connection": "c", "model": "m"}), of(Some(connection())))]
    #[case::by_the_newer_name(json!({"provider": "p", "connectionId": "c", "model": "m"}), of(Some(connection())))]
    #[case::by_both(
        json!({"all": false, "provider": "p", "connection": "c", "connectionId": "c", "model": "m"}),
        of(Some(connection())),
    )]
    fn what_to_clear_is_read(#[case] body: Value, #[case] expected: ClearLockouts) {
        assert_eq!(read_clear(body.to_string().as_bytes()), Ok(expected));
    }

    fn of(connection: Option<ConnectionId>) -> ClearLockouts {
        ClearLockouts::Of {
            provider: provider(),
            connection,
            model: ModelId::new("m").unwrap(),
        }
    }

    #[rstest]
    #[case::nothing("", &[])]
    #[case::a_number("7", &[])]
    #[case::no_member("{}", &["provider", "model"])]
    #[case::no_model(r#"{"provider":"p"}"#, &["model"])]
    #[case::no_provider(r#"{"model":"m","connection":"c"}"#, &["provider"])]
    #[case::wrong_types(r#"{"all":1,"provider":2,"model":{}}"#, &["all", "provider", "model"])]
    #[case::two_connections(
        r#"{"provider":"p","connection":"c","connectionId":"d","model":"m"}"#,
        &["connectionId"],
    )]
    #[case::all_of_one(r#"{"all":true,"provider":"p"}"#, &["provider"])]
    #[case::unknown_member(r#"{"provider":"p","model":"m","modle":"m"}"#, &["modle"])]
    fn what_not_to_clear_is_refused(#[case] body: &str, #[case] fields: &[&str]) {
        assert_eq!(refused_fields(read_clear(body.as_bytes())), fields);
    }

    #[test]
    fn a_patch_is_an_object() {
        assert!(read_patch(b"{\"modelLockout\":{}}").unwrap().len() == 1);
        for body in ["", "[]", "null", "{", "\"x\""] {
            assert_eq!(
                read_patch(body.as_bytes()).unwrap_err().details,
                [],
                "{body}"
            );
        }
    }

    fn refused_fields<T: std::fmt::Debug>(read: Result<T, BadRequest>) -> Vec<String> {
        let refused = read.unwrap_err();
        assert!(!refused.message.is_empty());
        let fields = refused.details.into_iter().map(|violation| violation.field);
        fields.collect()
    }
}
