//! A part of a configuration put into a whole one.
//!
//! What the part names is written, whole: a provider, a connection, a combo, a key or the row of a model takes the place of
//! the one of its name, where that stood, or is added behind the others. Settings are merged member by member, as by a JSON
//! merge patch. Mappings and quota pools have no names, so that their lists are replaced, where the part has any. Nothing
//! that it does not name is changed or taken out.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::{Document, Resource, Violation, Violations};

/// A configuration with a part put into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The whole.
    pub document: Document,
    /// What stands that the part does not name: keys, then connections, combos and providers, each by name.
    pub untouched: Vec<Resource>,
}

impl Document {
    /// This document with a part put into it.
    ///
    /// # Errors
    /// What the part names twice, and what is wrong with its settings. Whether the whole makes sense is not looked at.
    pub fn merged_with(&self, part: Self) -> Result<Merged, Vec<Violation>> {
        let mut found = Violations::default();
        let mut document = self.clone();
        let providers = put(
            "providers",
            &mut document.providers,
            part.providers,
            |it| it.id.as_str(),
            &mut found,
        );
        let connections = put(
            "connections",
            &mut document.connections,
            part.connections,
            |it| it.id.as_str(),
            &mut found,
        );
        let combos = put(
            "combos",
            &mut document.combos,
            part.combos,
            |it| it.name.as_str(),
            &mut found,
        );
        let keys = put(
            "keys",
            &mut document.keys,
            part.keys,
            |it| it.id.as_str(),
            &mut found,
        );
        // A key that goes on working is what harms most when it was meant to be gone.
        let keys = keys.into_iter().map(Resource::Key);
        let untouched = keys
            .chain(connections.into_iter().map(Resource::Connection))
            .chain(combos.into_iter().map(Resource::Combo))
            .chain(providers.into_iter().map(Resource::Provider))
            .collect();
        put(
            "models",
            &mut document.models,
            part.models,
            |it| it.model.as_str(),
            &mut found,
        );
        if !part.model_mappings.is_empty() {
            document.model_mappings = part.model_mappings;
        }
        if !part.quota_pools.is_empty() {
            document.quota_pools = part.quota_pools;
        }
        if !part.settings.members().is_empty() {
            match document.settings.patched(part.settings.members()) {
                Ok(settings) => document.settings = settings,
                Err(wrong) => {
                    for Violation { field, message } in wrong {
                        found.push(format!("settings.{field}"), message);
                    }
                }
            }
        }
        if found.is_empty() {
            Ok(Merged {
                document,
                untouched,
            })
        } else {
            Err(found.into_vec())
        }
    }

    /// A place in this document, such as `connections[2].provider`, with the name of the entry for its index, as in
    /// `connections[main].provider`; as it is where entries have no names.
    #[must_use]
    pub fn place_by_name(&self, field: &str) -> String {
        let named = || {
            let (list, rest) = field.split_once('[')?;
            let (index, member) = rest.split_once(']')?;
            let index: usize = index.parse().ok()?;
            let name = match list {
                "providers" => self.providers.get(index)?.id.as_str(),
                "connections" => self.connections.get(index)?.id.as_str(),
                "combos" => self.combos.get(index)?.name.as_str(),
                "keys" => self.keys.get(index)?.id.as_str(),
                "models" => self.models.get(index)?.model.as_str(),
                _ => return None,
            };
            Some(format!("{list}[{name}]{member}"))
        };
        named().unwrap_or_else(|| field.to_owned())
    }
}

/// Puts the entries of a part into a list by their names. Returns the names of the list that it does not name, in their order.
fn put<T>(
    list: &str,
    all: &mut Vec<T>,
    part: Vec<T>,
    name: impl Fn(&T) -> &str,
    found: &mut Violations,
) -> Vec<String> {
    let places: BTreeMap<String, usize> = all
        .iter()
        .enumerate()
        .map(|(place, it)| (name(it).to_owned(), place))
        .collect();
    let mut named = BTreeSet::new();
    for item in part {
        let own = name(&item).to_owned();
        if named.contains(&own) {
            found.push(
                format!("{list}[{own}]"),
                format!("{own} is named more than once"),
            );
            continue;
        }
        let place = places.get(&own).copied().unwrap_or(usize::MAX);
        if let Some(standing) = all.get_mut(place) {
            *standing = item;
        } else {
            all.push(item);
        }
        named.insert(own);
    }
    let standing = places.into_keys();
    standing.filter(|name| !named.contains(name)).collect()
}
