//! Puts a new configuration into force, if it is good and not older than what is there.

use std::sync::Arc;

use secrecy::SecretString;
use tidegate_core::config::Config;
use tidegate_core::ids::ConnectionId;
use tidegate_core::routing::Counters;
use tidegate_core::settings::Overrides;
use tidegate_proto::config::v1 as proto;
use tidegate_wire::{WireError, document};

use crate::client::{Inner, Origin};
use crate::port::{Credential, Snapshot};

/// Why a configuration is not put into force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    /// A member is not understood.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It is understood and makes no sense.
    #[error("{count} violations, the first: {field}: {message}")]
    Violations {
        count: usize,
        field: String,
        message: String,
    },
}

impl Inner {
    /// Puts a snapshot into force. One that does not build never replaces a good one, and one from the control
    /// plane is never replaced by an older one. What came from disk gives way to whatever the control plane says.
    /// Settings never are a reason to refuse one: what is not understood of them is as if it were not there.
    pub(crate) fn install(
        &self,
        message: proto::Snapshot,
        origin: Origin,
    ) -> Result<(), InstallError> {
        let version = message.version;
        let known = self.confirmed_version();
        let older_credentials = message.credentials_revision < self.snapshot_credentials_revision();
        if version < known || (version == known && older_credentials) {
            tracing::debug!(version, "passed over an older configuration");
            return Ok(());
        }
        let in_force = self.snapshot.load_full();
        let counters = in_force.as_ref().map(|snapshot| &*snapshot.counters);
        let snapshot = match build(&message, counters) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.metrics.configurations_refused.inc();
                self.refused.send_replace(version);
                tracing::error!(version, error = %error, "refused a configuration");
                return Err(error);
            }
        };
        if let Some(mended) = snapshot.config.mended.first() {
            tracing::warn!(version, field = %mended.field, what = %mended.message, "settings were mended");
        }
        self.snapshot.store(Some(Arc::new(snapshot)));
        self.metrics.configuration_version.set(version);
        self.set_origin(origin);
        self.refused.send_replace(0);
        self.installed.send_replace(version);
        // That nothing was ever applied is for a control plane to say, each time.
        if origin == Origin::ControlPlane && version > 0 {
            self.newest_snapshot.send_replace(Some(message));
        }
        tracing::info!(version, origin = ?origin, "configuration in force");
        Ok(())
    }

    /// Revision of the credentials in force, wherever they came from; 0 without any.
    pub(crate) fn snapshot_credentials_revision(&self) -> u64 {
        let snapshot = self.snapshot.load();
        snapshot
            .as_ref()
            .map_or(0, |snapshot| snapshot.credentials_revision)
    }

    /// Takes over credentials that were renewed. Those of another version of the configuration, or not newer than what
    /// is here, change nothing.
    pub(crate) fn renew_credentials(&self, delta: proto::CredentialsDelta) {
        let version = delta.configuration_version;
        let revision = delta.revision;
        let Some(current) = self.snapshot.load_full() else {
            return;
        };
        if version != self.confirmed_version() || revision <= current.credentials_revision {
            tracing::debug!(version, revision, "passed over renewed credentials");
            return;
        }
        let mut credentials = current.credentials.clone();
        for (connection, renewed) in delta.credentials.iter().filter_map(credential) {
            let known = credentials
                .get(&connection)
                .map_or(0, |known| known.version);
            if renewed.version > known {
                credentials.insert(connection, renewed);
            }
        }
        self.snapshot.store(Some(Arc::new(Snapshot {
            config: Arc::clone(&current.config),
            credentials,
            credentials_revision: revision,
            counters: Arc::clone(&current.counters),
        })));
        self.newest_snapshot.send_if_modified(|kept| {
            let Some(kept) = kept.as_mut().filter(|kept| kept.version == version) else {
                return false;
            };
            merge(&mut kept.credentials, delta.credentials);
            kept.credentials_revision = revision;
            true
        });
        tracing::info!(version, revision, "renewed credentials in force");
    }
}

/// Replaces credentials by newer ones of the same connection and adds those of others.
fn merge(kept: &mut Vec<proto::Credential>, renewed: Vec<proto::Credential>) {
    for renewed in renewed {
        let known = kept
            .iter_mut()
            .find(|known| known.connection == renewed.connection);
        match known {
            Some(known) if known.version >= renewed.version => {}
            Some(known) => *known = renewed,
            None => kept.push(renewed),
        }
    }
}

fn build(message: &proto::Snapshot, counters: Option<&Counters>) -> Result<Snapshot, InstallError> {
    let document = document::from_proto(message.document.clone().unwrap_or_default())?;
    let overrides = Overrides::from_environment(&message.overrides);
    let config =
        Config::build_stored(document, message.version, &overrides).map_err(|violations| {
            let first = violations.first();
            InstallError::Violations {
                count: violations.len(),
                field: first.map(|first| first.field.clone()).unwrap_or_default(),
                message: first.map(|first| first.message.clone()).unwrap_or_default(),
            }
        })?;
    Ok(Snapshot {
        counters: Arc::new(Counters::of(&config, counters, rand::random())),
        config: Arc::new(config),
        credentials: message.credentials.iter().filter_map(credential).collect(),
        credentials_revision: message.credentials_revision,
    })
}

/// A credential that cannot be used is left out: its connection is as good as switched off, and the others go on.
fn credential(message: &proto::Credential) -> Option<(ConnectionId, Credential)> {
    let connection = ConnectionId::new(&message.connection).ok()?;
    let Ok(secret) = std::str::from_utf8(&message.secret) else {
        tracing::error!(connection = %connection, "a credential is not text");
        return None;
    };
    let credential = Credential {
        version: message.version,
        secret: SecretString::from(secret),
    };
    Some((connection, credential))
}
