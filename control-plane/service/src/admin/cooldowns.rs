//! Everything that cools: what the cooldown gate holds of a provider, its connections, its egress identities.

use tidegate_core::config::{Config, ProviderEntry};
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::routing::View as _;
use tidegate_core::time::Timestamp;
use tidegate_proto::admin::v1 as proto;
use tidegate_wire::routing::serde_word;

use super::Admin;
use super::page::Page;

/// Provider, and the place in its list: the gate's, the connections' by priority, then the egress identities'. Places stay
/// the same as long as the configuration does, except for those of egress identities.
pub(crate) type CooldownKey = (String, usize);

impl Admin {
    /// A page of what cools, and the token of the next one.
    pub(crate) fn cooldowns(
        &self,
        config: &Config,
        provider: Option<&ProviderId>,
        connection: Option<&ConnectionId>,
        page: &Page<CooldownKey>,
    ) -> (Vec<proto::Cooldown>, String) {
        let now = self.clock.now();
        let entries = config.providers.values();
        let entries = entries.filter(|it| provider.is_none_or(|only| it.provider.id == *only));
        let all = entries.flat_map(|entry| self.cooldowns_of(entry, now));
        let is_wanted = |cooldown: &proto::Cooldown| {
            connection.is_none_or(|only| cooldown.connection == only.as_str())
        };
        page.of(all.filter(|(_, cooldown)| is_wanted(cooldown)))
    }

    fn cooldowns_of(
        &self,
        entry: &ProviderEntry,
        now: Timestamp,
    ) -> Vec<(CooldownKey, proto::Cooldown)> {
        let provider = entry.provider.id.to_string();
        let of = |kind: proto::CooldownKind, until: Timestamp, reason: String| proto::Cooldown {
            kind: kind.into(),
            provider: provider.clone(),
            reason,
            remaining_ms: until.remaining_ms(now),
            until_unix_ms: until.0,
            ..proto::Cooldown::default()
        };
        let mut all = Vec::new();
        let mut place = 0_usize;
        let mut put = |cooldown: Option<proto::Cooldown>| {
            all.extend(cooldown.map(|it| ((provider.clone(), place), it)));
            place = place.saturating_add(1);
        };
        let state = self.view.provider(&entry.provider.id);
        let gate = state.and_then(|state| {
            let end = state.gate.end(now, &entry.policy.gate)?;
            let (until, reason) = (end.until, serde_word(&end.reason));
            Some(of(proto::CooldownKind::ProviderGate, until, reason))
        });
        put(gate);
        for config in &entry.connections {
            let state = self.state_of(config);
            let named = |cooldown: proto::Cooldown| proto::Cooldown {
                connection: config.id.to_string(),
                ..cooldown
            };
            let own = state.cooldown.until.filter(|until| *until > now);
            put(own.map(|until| {
                let reason = state.cooldown.reason.as_ref();
                let reason = reason.map(serde_word).unwrap_or_default();
                named(of(proto::CooldownKind::Connection, until, reason))
            }));
            put(state.gate.end(now, &entry.policy.gate).map(|end| {
                let reason = serde_word(&end.reason);
                named(of(proto::CooldownKind::ConnectionGate, end.until, reason))
            }));
        }
        for lock in self.egress_locks(entry, now) {
            let reason = serde_word(&lock.reason);
            put(Some(proto::Cooldown {
                egress: lock.egress.to_string(),
                ..of(proto::CooldownKind::Egress, lock.until, reason)
            }));
        }
        all
    }
}
