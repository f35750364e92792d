//! Quota pools: few accounts that several keys share fairly (`routing.md` §11.1). Each model of a pool is a hidden combo
//! with the strategy `quota-share`, named `qtSd/<group>/<provider>/<model>`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use crate::number::Finite;

use super::index::combos::MAX_ALL_TARGETS;
use super::names::Names;
use super::{Combo, ComboConfig, MAX_LIMITED_TO, ModelStep, Step, Strategy, Violations};

/// Most quota pools.
const MAX_POOLS: usize = 1_000;
/// Longest name of a group, in bytes.
const MAX_GROUP_BYTES: usize = 128;
/// Largest weight of an account.
const MAX_WEIGHT: u32 = 100;

/// Accounts of a provider that are shared, and the models they are shared for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QuotaPool {
    /// Who shares them, for people, at most 128 bytes; its lower-case letters and digits stand in the names of the combos.
    pub group: String,
    /// The provider.
    pub provider: ProviderId,
    /// The models, at most 1 000.
    pub models: Vec<ModelId>,
    /// The accounts, at most 1 000.
    pub connections: Vec<PoolConnection>,
}

/// One account of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PoolConnection {
    /// The account.
    pub connection: ConnectionId,
    /// Its share of the requests, 0..=100; 0 counts as 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: Finite,
}

fn one() -> Finite {
    Finite::ONE
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature serde asks for"
)]
fn is_one(weight: &Finite) -> bool {
    *weight == Finite::ONE
}

impl QuotaPool {
    /// The combo for one of its models; `None` when there is no name for it.
    #[must_use]
    pub fn combo(&self, model: &ModelId) -> Option<Combo> {
        let steps = self.connections.iter().map(|shared| {
            Step::Model(Box::new(ModelStep {
                connection: Some(shared.connection.clone()),
                weight: shared.weight,
                ..ModelStep::new(format!("{}/{model}", self.provider))
            }))
        });
        Some(Combo {
            name: self.combo_name(model)?,
            strategy: Strategy::QuotaShare,
            steps: steps.collect(),
            config: ComboConfig::default(),
        })
    }

    /// The name of that combo; `None` when the group has no letter or digit, or the name is too long.
    #[must_use]
    pub fn combo_name(&self, model: &ModelId) -> Option<ComboName> {
        let group = self.slug();
        if group.is_empty() {
            return None;
        }
        ComboName::new(format!("qtSd/{group}/{}/{model}", self.provider)).ok()
    }

    fn slug(&self) -> String {
        let letters = self.group.chars().filter(char::is_ascii_alphanumeric);
        letters.map(|letter| letter.to_ascii_lowercase()).collect()
    }
}

/// Says what is wrong with each pool, in order.
pub(super) fn check(pools: &[QuotaPool], names: &Names<'_>) -> Vec<Violations> {
    let mut taken = BTreeSet::new();
    let mut targets = 0_usize;
    let mut all = Vec::with_capacity(pools.len());
    for (index, pool) in pools.iter().enumerate() {
        let path = format!("quotaPools[{index}]");
        let mut found = Violations::default();
        if index >= MAX_POOLS {
            found.push(path, format!("there are more than {MAX_POOLS} pools"));
        } else {
            members(&path, pool, names, &mut found);
            targets =
                targets.saturating_add(pool.models.len().saturating_mul(pool.connections.len()));
            if targets > MAX_ALL_TARGETS {
                let message = format!(
                    "models times connections come to more than {MAX_ALL_TARGETS}, with the pools before"
                );
                found.push(&path, message);
            }
            if found.is_empty() {
                combos(&path, pool, &mut taken, &mut found);
            }
        }
        all.push(found);
    }
    all
}

fn members(path: &str, pool: &QuotaPool, names: &Names<'_>, found: &mut Violations) {
    if pool.group.len() > MAX_GROUP_BYTES || pool.slug().is_empty() {
        let message =
            format!("must have at most {MAX_GROUP_BYTES} bytes, and a letter or digit of ASCII");
        found.push(format!("{path}.group"), message);
    }
    if !names.providers.contains_key(pool.provider.as_str()) {
        let message = format!("there is no provider {}", pool.provider);
        found.push(format!("{path}.provider"), message);
        return;
    }
    let sizes = [
        ("models", pool.models.len()),
        ("connections", pool.connections.len()),
    ];
    for (member, size) in sizes {
        let field = format!("{path}.{member}");
        if size == 0 {
            found.push(field, "must have at least one entry");
        } else {
            found.at_most(field, size, MAX_LIMITED_TO);
        }
    }
    let mut seen = BTreeSet::new();
    let shared = pool.connections.iter().take(MAX_LIMITED_TO);
    for (index, shared) in shared.enumerate() {
        let path = format!("{path}.connections[{index}]");
        let connection = &shared.connection;
        if names.connections.get(connection) != Some(&&pool.provider) {
            let message = format!("provider {} has no connection {connection}", pool.provider);
            found.push(format!("{path}.connection"), message);
        }
        if !seen.insert(connection) {
            let message = format!("{connection} is in the pool already");
            found.push(format!("{path}.connection"), message);
        }
        let bounds = Finite::ZERO..=Finite::from(MAX_WEIGHT);
        found.within(format!("{path}.weight"), shared.weight, &bounds);
    }
}

fn combos(path: &str, pool: &QuotaPool, taken: &mut BTreeSet<ComboName>, found: &mut Violations) {
    for (index, model) in pool.models.iter().enumerate() {
        let field = || format!("{path}.models[{index}]");
        match pool.combo_name(model) {
            None => found.push(field(), "makes the name of the combo too long"),
            Some(name) if taken.contains(&name) => {
                found.push(field(), format!("there is a combo {name} already"));
            }
            Some(name) => {
                taken.insert(name);
            }
        }
    }
}
