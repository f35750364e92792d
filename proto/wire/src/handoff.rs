//! Notes that follow conversations.

use tidegate_core::ids::ComboName;
use tidegate_core::routing::relay::{
    HandoffName, MAX_DECISIONS, MAX_ENTITIES, MESSAGES, Note, SessionDigest, Terms,
};
use tidegate_core::time::Timestamp;
use tidegate_proto::routing::v1 as routing;

use crate::{WireError, name};

/// The name of a note as a message.
#[must_use]
pub fn name_to_proto(name: &HandoffName) -> routing::HandoffName {
    routing::HandoffName {
        session: name.session.0.to_vec(),
        combo: name.combo.to_string(),
    }
}

/// The name of a note from a message.
///
/// # Errors
/// When it is missing, the session is not a hash, or the combo has no valid name.
pub fn name_from_proto(message: Option<routing::HandoffName>) -> Result<HandoffName, WireError> {
    let message = message.ok_or(WireError::Missing("name"))?;
    let session = <[u8; 32]>::try_from(message.session)
        .map_err(|_| WireError::invalid("name.session", "32 bytes"))?;
    Ok(HandoffName {
        session: SessionDigest(session),
        combo: name("name.combo", ComboName::new(message.combo))?,
    })
}

/// A note as a message.
#[must_use]
pub fn note_to_proto(note: &Note) -> routing::HandoffNote {
    routing::HandoffNote {
        summary: note.summary.clone(),
        progress: note.progress.clone(),
        decisions: note.decisions.clone(),
        entities: note.entities.clone(),
    }
}

/// A note from a message. What is longer than its bound is cut off.
///
/// # Errors
/// When it is missing or has no summary, or too many entries.
pub fn note_from_proto(message: Option<routing::HandoffNote>) -> Result<Note, WireError> {
    let message = message.ok_or(WireError::Missing("note"))?;
    if message.decisions.len() > MAX_DECISIONS || message.entities.len() > MAX_ENTITIES {
        return Err(WireError::invalid("note", "too many decisions or entities"));
    }
    let note = Note {
        summary: message.summary,
        progress: message.progress,
        decisions: message.decisions,
        entities: message.entities,
    };
    note.bounded()
        .ok_or_else(|| WireError::invalid("note.summary", "is empty"))
}

/// Terms as a message.
#[must_use]
pub fn terms_to_proto(terms: Terms) -> routing::BeginHandoffResponse {
    routing::BeginHandoffResponse {
        reason: routing::NoHandoffReason::Unspecified.into(),
        model: terms.model.unwrap_or_default(),
        max_messages: terms.max_messages,
        expires_at_unix_ms: terms.expires_at.0,
    }
}

/// Terms from a message; `None` when no note is to be made.
#[must_use]
pub fn terms_from_proto(message: routing::BeginHandoffResponse) -> Option<Terms> {
    if message.reason != i32::from(routing::NoHandoffReason::Unspecified) {
        return None;
    }
    Some(Terms {
        model: Some(message.model).filter(|model| !model.is_empty()),
        max_messages: message
            .max_messages
            .clamp(*MESSAGES.start(), *MESSAGES.end()),
        expires_at: Timestamp(message.expires_at_unix_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> Note {
        Note {
            summary: "s".to_owned(),
            progress: "p".to_owned(),
            decisions: vec!["d".to_owned()],
            entities: vec!["e".to_owned(), "f".to_owned()],
        }
    }

    #[test]
    fn what_is_told_comes_back_as_it_was() {
        let name = HandoffName {
            session: SessionDigest([9; 32]),
            combo: ComboName::new("talk").unwrap(),
        };
        assert_eq!(name_from_proto(Some(name_to_proto(&name))), Ok(name));
        assert_eq!(note_from_proto(Some(note_to_proto(&note()))), Ok(note()));
        for model in [None, Some("codex/n".to_owned())] {
            let terms = Terms {
                model,
                max_messages: 7,
                expires_at: Timestamp(3),
            };
            let told = terms_to_proto(terms.clone());
            assert_eq!(terms_from_proto(told), Some(terms));
        }
    }

    #[test]
    fn what_means_nothing_is_refused() {
        assert!(name_from_proto(None).is_err());
        let short = routing::HandoffName {
            session: vec![0; 31],
            combo: "talk".to_owned(),
        };
        assert!(name_from_proto(Some(short)).is_err());
        assert!(note_from_proto(None).is_err());
        let mut many = note_to_proto(&note());
        many.decisions = vec![String::new(); MAX_DECISIONS + 1];
        assert!(note_from_proto(Some(many)).is_err());
        let empty = routing::HandoffNote::default();
        assert!(note_from_proto(Some(empty)).is_err());
        let refused = routing::BeginHandoffResponse {
            reason: routing::NoHandoffReason::Running.into(),
            ..routing::BeginHandoffResponse::default()
        };
        assert_eq!(terms_from_proto(refused), None);
    }
}
