//! Notes that follow conversations to another account (`routing.md` §8.4).
//!
//! Only a request with an API key (one that may not lease) that names its session and a combo with the strategy `context-relay` has a [`Relay`]. While its first
//! decision is made, the note of its conversation is asked for. An attempt on another connection than the one that the
//! note was made on is told it, ahead of everything else. After a success the control plane is asked whether a note is
//! to be made; if so, a request of our own has the conversation summed up ([`make`]). The client waits for none of it
//! but the note that was asked for, and for that no longer than for a decision.
//!
//! **Stance:** fail-open. Without an answer the request goes on as it is. No log holds anything that was said.

mod make;

use std::sync::Arc;

use http::HeaderMap;
use tidegate_core::config::Strategy;
use tidegate_core::ids::ConnectionId;
use tidegate_core::routing::RequestFacts;
use tidegate_core::routing::relay::{HandoffName, Note, SessionDigest, is_told};
use tidegate_core::session_key::SessionKey;
use tokio_util::task::AbortOnDropHandle;

use crate::control_port::ControlPort;
use crate::endpoint::Endpoint;
use crate::plan::Conversation;
use crate::proxy::Shared;
use crate::request::RequestBody;

pub(crate) use make::{Served, make_after};

/// What a request has to do with notes.
pub(crate) struct Relay {
    name: HandoffName,
    asked: Option<AbortOnDropHandle<Found>>,
    found: Found,
}

type Found = Option<(Note, ConnectionId)>;

impl Relay {
    /// Asks for the note of the request's conversation, where there can be one.
    pub(crate) fn begin<C: ControlPort>(
        shared: &Arc<Shared<C>>,
        endpoint: Endpoint,
        headers: &HeaderMap,
        facts: &RequestFacts,
    ) -> Option<Self> {
        // A lease covers one connection, and what we ask for ourselves is nobody's session.
        let is_managed = facts.key.as_ref().is_some_and(|key| key.may_lease());
        if !Conversation::is_held_at(endpoint) || is_managed {
            return None;
        }
        let combo = {
            let snapshot = shared.control.snapshot()?;
            let combo = &snapshot.config.combo_for(&facts.model)?.combo;
            (combo.strategy == Strategy::ContextRelay).then(|| combo.name.clone())?
        };
        let key = SessionKey::of_headers(|name| Some(headers.get(name)?.as_bytes()))?;
        let client = &facts.key.as_ref()?.id;
        let name = HandoffName {
            session: SessionDigest::of(client, &key),
            combo,
        };
        let (control, which) = (Arc::clone(shared), name.clone());
        let asking = async move { control.control.fetch_handoff(&which).await };
        Some(Self {
            name,
            asked: Some(AbortOnDropHandle::new(shared.tasks.spawn(asking))),
            found: None,
        })
    }

    /// The body with the note ahead of it, for a connection that is told; `None`: as it is.
    pub(crate) async fn told(
        &mut self,
        endpoint: Endpoint,
        body: &RequestBody,
        connection: &ConnectionId,
    ) -> Option<RequestBody> {
        if let Some(asked) = self.asked.take() {
            self.found = asked.await.unwrap_or_default();
        }
        let (note, made_on) = self.found.as_ref()?;
        if !is_told(made_on, connection) {
            return None;
        }
        let told = Conversation::of(endpoint, body)
            .and_then(|conversation| conversation.with_prompt(&note.told()))
            .and_then(Conversation::into_body);
        match told {
            Ok(told) => Some(told),
            Err(refusal) => {
                tracing::debug!(code = refusal.code(), "a note cannot be put into the body");
                None
            }
        }
    }
}
