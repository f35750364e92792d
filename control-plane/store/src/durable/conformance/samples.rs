//! Things to store.

use tidegate_core::classify::{Origin, Reason};
use tidegate_core::config::{AccountStrategy, Connection, Document, Protocol, Provider};
use tidegate_core::ids::{
    AttemptId, ConnectionId, KeyId, ModelId, NameError, PlaneIncarnation, ProviderId, RuleId, Shard,
};
use tidegate_core::state::{Transition, TransitionKind};
use tidegate_core::time::Timestamp;
use tidegate_core::usage::{OpenAttempt, TokenUsage, UsageRecord, UsageSource};
use tidegate_core::version::Version;

use super::CaseError;
use crate::durable::{SealedCredential, SealedGrant, SealedSecrets, SealedToken};
use crate::hot::{Entry, ReportMark};

/// A moment of today.
pub(super) const NOW: Timestamp = Timestamp(1_790_000_000_000);

pub(super) fn provider(name: &str) -> Result<ProviderId, NameError> {
    ProviderId::new(name)
}

pub(super) fn connection(name: &str) -> Result<ConnectionId, NameError> {
    ConnectionId::new(name)
}

/// A document of one provider and these connections.
pub(super) fn document(connections: &[&str]) -> Result<Document, NameError> {
    let mut document = Document::default();
    document.providers.push(Provider {
        id: provider("openai")?,
        protocol: Protocol::Openai,
        base_url: "https://example.invalid/v1?name=\"ü\"\\".to_owned(),
        class: None,
        models: vec![ModelId::new("gpt-ü")?],
        per_model_quota: Some(true),
        account_strategy: AccountStrategy::FillFirst,
        oauth: None,
        quota_endpoint: None,
    });
    for name in connections {
        document.connections.push(Connection {
            id: connection(name)?,
            provider: provider("openai")?,
            priority: 7,
            enabled: false,
            credential: None,
            disable_cooling: false,
            max_concurrent: Some(2),
            rate_limit_protection: Some(false),
            per_model_quota: Some(false),
            models: Vec::new(),
            refresh_token: None,
            client_id: None,
            client_secret: None,
            quota_endpoint: None,
        });
    }
    Ok(document)
}

/// A sealed credential; every byte value occurs in it.
pub(super) fn credential(name: &str, version: u64) -> Result<SealedCredential, NameError> {
    Ok(SealedCredential {
        connection: connection(name)?,
        version,
        sealed: (0..=u8::MAX).chain(version.to_be_bytes()).collect(),
        fingerprint: version.to_be_bytes().to_vec(),
        applied_version: version,
    })
}

/// Credentials of connections, all of one version.
pub(super) fn credentials(names: &[&str], version: u64) -> Result<SealedSecrets, NameError> {
    let list: Result<Vec<_>, NameError> =
        names.iter().map(|name| credential(name, version)).collect();
    Ok(of_credentials(&list?))
}

/// Secrets that are these credentials alone.
pub(super) fn of_credentials(credentials: &[SealedCredential]) -> SealedSecrets {
    SealedSecrets {
        credentials: credentials.to_vec(),
        ..SealedSecrets::default()
    }
}

/// A sealed refresh token or client secret.
pub(super) fn token(version: u64) -> SealedToken {
    SealedToken {
        version,
        sealed: (0..=u8::MAX).chain(version.to_be_bytes()).collect(),
        fingerprint: b"applied".to_vec(),
    }
}

/// What an access token is renewed with.
pub(super) fn grant(name: &str, version: u64) -> Result<SealedGrant, NameError> {
    Ok(SealedGrant {
        connection: connection(name)?,
        refresh_token: token(version),
        client_secret: Some(token(version + 7)),
    })
}

/// A shard.
pub(super) fn shard(number: u8) -> Result<Shard, CaseError> {
    Shard::new(number).ok_or_else(|| super::failed("no such shard"))
}

/// An entry that expires in a minute; its payload tells key and version.
pub(super) fn entry(key: &str, version: Version) -> Entry {
    Entry {
        key: key.to_owned(),
        version,
        schema: 1,
        payload: format!("\0{key}={version:?}\u{ff}").into_bytes(),
        expires_at: NOW.plus_ms(60_000),
    }
}

pub(super) fn mark(plane: u64, number: u64) -> ReportMark {
    ReportMark {
        plane: PlaneIncarnation(plane),
        number,
    }
}

/// A cooldown of a connection of `name` that began at `at`.
pub(super) fn transition(name: &str, at: u64, level: u32) -> Result<Transition, NameError> {
    Ok(Transition {
        at: Timestamp(at),
        provider: provider(name)?,
        connection: Some(connection("c-1")?),
        kind: TransitionKind::Cooldown {
            until: Timestamp(u64::MAX),
            backoff_level: level,
            reason: Reason::RateLimitExceeded,
        },
        attempt: Some(AttemptId {
            plane: PlaneIncarnation(u64::MAX),
            number: 1,
        }),
        origin: Some(Origin {
            rule: RuleId::new("operator:openai:0")?,
            original_status: Some(403),
        }),
    })
}

/// Tokens of an attempt.
pub(super) fn usage(plane: u64, number: u64) -> Result<UsageRecord, NameError> {
    Ok(UsageRecord {
        attempt: AttemptId {
            plane: PlaneIncarnation(plane),
            number,
        },
        at: NOW,
        provider: provider("openai")?,
        connection: connection("c-1")?,
        model: ModelId::new("openai/gpt-oss-120b:free")?,
        key: number
            .is_multiple_of(2)
            .then(|| KeyId::new("team"))
            .transpose()?,
        tokens: TokenUsage {
            input: Some(number),
            output: None,
            source: UsageSource::Provider,
        },
    })
}

/// An attempt whose answer is under way since a second before [`NOW`].
pub(super) fn open(plane: u64, number: u64) -> Result<OpenAttempt, NameError> {
    let UsageRecord {
        attempt,
        at,
        provider,
        connection,
        model,
        key,
        ..
    } = usage(plane, number)?;
    Ok(OpenAttempt {
        attempt,
        since: at.minus_ms(1_000),
        provider,
        connection,
        model,
        key,
    })
}
