//! From the answer of a token endpoint into the store.

use std::time::Duration;

use secrecy::SecretString;
use tidegate_core::config::Connection;
use tidegate_core::refresh::TokenState;
use tidegate_core::routing::View as _;
use tidegate_core::state::TransitionKind;
use tidegate_store::durable::{LeaseAnswer, LeasedToken, RefreshedToken, SaveAnswer, SealedToken};
use tidegate_store::seal::TokenKind;
use tokio::time::sleep;

use crate::clock::local_now;
use crate::telemetry::metrics::TokenRefresh;

use super::endpoint::Issued;
use super::{KEEP_FOR, LIMIT, OwnFault, Refresher, limited};

/// First and longest pause between two offers to a store that does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Offers that are still made after the process was told to end.
const LAST_OFFERS: u32 = 3;

/// What became of an offer.
enum Offered {
    /// It is stored.
    Stored,
    /// Another refresh token stands, so this one is of no use.
    Superseded,
    /// Not yet; to be offered again, on what stands now, after so long.
    Again(Option<Box<LeasedToken>>, Duration),
}

impl Refresher {
    /// Stores what was issued, and puts it into force.
    pub(super) async fn keep(
        &self,
        connection: &Connection,
        mut leased: LeasedToken,
        issued: Issued,
        used: &SecretString,
    ) -> Result<(), OwnFault> {
        let used_version = leased.grant.refresh_token.version;
        let state = TokenState::of_new_token(leased.now, issued.life_ms);
        // Sealed once, so that a save whose answer was lost is known again.
        let refresh_token = self.parts.sealer.seal_token(
            TokenKind::RefreshToken,
            &connection.id,
            used_version.saturating_add(1),
            issued.refresh_token.as_ref().unwrap_or(used),
        )?;
        let begun = local_now();
        let mut pause = FIRST_PAUSE;
        let mut last_offers = LAST_OFFERS;
        loop {
            let refreshed = RefreshedToken {
                used_version,
                refresh_token: refresh_token.clone(),
                replaces_version: leased.row.credential_version,
                credential: self.seal_credential(connection, &leased, &issued)?,
                state: state.clone(),
            };
            let offered = match self.offer(&leased, &refreshed).await {
                Ok(offered) => offered,
                Err(error) => {
                    tracing::error!(connection = %connection.id, %error, "a renewed token is not stored yet");
                    let wait = pause;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    Offered::Again(None, wait)
                }
            };
            match offered {
                Offered::Stored => break,
                Offered::Superseded => {
                    self.parts.metrics.token_refresh(TokenRefresh::Superseded);
                    tracing::warn!(connection = %connection.id, "a renewed token was replaced in the meantime");
                    return self.release(&leased.lease).await;
                }
                Offered::Again(newer, wait) => {
                    if let Some(newer) = newer {
                        leased = *newer;
                    }
                    if self.stop.is_cancelled() {
                        last_offers = last_offers.saturating_sub(1);
                    }
                    if last_offers == 0 || local_now().saturating_duration_since(begun) > KEEP_FOR {
                        return Err(OwnFault::Late);
                    }
                    sleep(wait).await;
                }
            }
        }
        self.parts.metrics.token_refresh(TokenRefresh::Refreshed);
        tracing::info!(connection = %connection.id, "an access token was renewed");
        self.tell(connection, &leased.lease, 0, TransitionKind::Refreshed);
        // Others, and this replica if it fails now, find the new revision with their next question.
        if let Err(error) = self.parts.config.refresh().await {
            tracing::warn!(%error, "a renewed token is not in force here yet");
        }
        self.parts.recorder.adopt_credentials().await;
        Ok(())
    }

    fn seal_credential(
        &self,
        connection: &Connection,
        leased: &LeasedToken,
        issued: &Issued,
    ) -> Result<tidegate_store::durable::SealedCredential, OwnFault> {
        let seen = self
            .parts
            .view
            .connection(&connection.provider, &connection.id)
            .map_or(0, |state| state.credential_version);
        let version = leased.row.credential_version.max(seen).saturating_add(1);
        let sealer = &self.parts.sealer;
        Ok(sealer.seal(&connection.id, version, &issued.access_token)?)
    }

    async fn offer(
        &self,
        leased: &LeasedToken,
        refreshed: &RefreshedToken,
    ) -> Result<Offered, OwnFault> {
        let save = self.parts.durable.save_refreshed(&leased.lease, refreshed);
        match limited(LIMIT, save).await? {
            SaveAnswer::Saved => Ok(Offered::Stored),
            SaveAnswer::TokenReplaced => Ok(Offered::Superseded),
            SaveAnswer::CredentialReplaced { current } => {
                let mut newer = leased.clone();
                newer.row.credential_version = current;
                Ok(Offered::Again(Some(Box::new(newer)), Duration::ZERO))
            }
            SaveAnswer::LeaseLost => self.after_loss(leased, refreshed).await,
        }
    }

    /// The lease ran out, or an earlier save was not answered and ended it.
    async fn after_loss(
        &self,
        leased: &LeasedToken,
        refreshed: &RefreshedToken,
    ) -> Result<Offered, OwnFault> {
        let connection = &leased.lease.connection;
        match self.lease(connection, &self.settings()).await? {
            LeaseAnswer::Absent => Ok(Offered::Superseded),
            // Its holder may use the same refresh token; what it does comes first.
            LeaseAnswer::Held { remaining_ms } => {
                let wait = Duration::from_millis(remaining_ms.saturating_add(10));
                Ok(Offered::Again(None, wait))
            }
            LeaseAnswer::Granted(newer) => {
                let stored: &SealedToken = &newer.grant.refresh_token;
                if stored.version == refreshed.used_version {
                    return Ok(Offered::Again(Some(newer), Duration::ZERO));
                }
                let ours = stored.sealed == refreshed.refresh_token.sealed;
                self.release(&newer.lease).await?;
                Ok(if ours {
                    Offered::Stored
                } else {
                    Offered::Superseded
                })
            }
        }
    }
}
