//! Tells the hot state of new credentials.
//!
//! A connection that was terminal under its old credential may be used with a new one. Whoever applied the
//! configuration could die before saying so, therefore every replica compares, again and again, which credential the
//! state was built on with the one that is configured. Saying it twice changes nothing.

use std::time::Duration;

use tidegate_core::routing::View as _;
use tidegate_core::state::Event;

use crate::clock::local_now;
use crate::hot::WRITE_LIMIT;

use super::Recorder;

const EVERY: Duration = Duration::from_secs(5);
/// Limit of telling one connection.
const LIMIT: Duration = Duration::from_secs(1);

impl Recorder {
    /// Compares for ever: after each change of the configuration, and every now and then.
    pub(crate) async fn adopt_credentials_forever(&self) {
        let mut versions = self.config.subscribe();
        loop {
            tokio::select! {
                changed = versions.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(EVERY) => {}
            }
            self.adopt_credentials().await;
            self.forget_planes();
        }
    }

    /// Compares once. What fails is tried again at the next turn.
    pub(crate) async fn adopt_credentials(&self) {
        let Some(current) = self.config.current() else {
            return;
        };
        for (connection, credential) in &current.credentials {
            let Some(config) = current.config.connection(connection) else {
                continue;
            };
            let Some(state) = self.view.connection(&config.provider, connection) else {
                continue;
            };
            if state.credential_version >= credential.version || state.is_clean() {
                continue;
            }
            let event = if credential.applied_version > state.credential_version {
                Event::CredentialReplaced {
                    connection: connection.clone(),
                    credential_version: credential.version,
                }
            } else {
                Event::TokenRefreshed {
                    connection: connection.clone(),
                    credential_version: credential.version,
                }
            };
            let deadline = local_now() + LIMIT;
            let told = self
                .direct(
                    &config.provider,
                    Some(connection),
                    &event,
                    WRITE_LIMIT,
                    deadline,
                )
                .await;
            if let Err(error) = told {
                tracing::warn!(%connection, %error, "hot state was not told of a new credential");
                return;
            }
        }
    }
}
