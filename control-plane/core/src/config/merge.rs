//! A part of a configuration put into a whole one.
//!
//! What the part names is written, whole: a provider, a connection, a combo, a key or the row of a model takes the place of
//! the one of its name, where that stood, or is added behind the others. Settings are merged member by member, as by a JSON
//! merge patch. Mappings and quota pools have no names, so that their lists are replaced, where the part has any. Nothing
//! that it does not name is changed or taken out.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::{Document, Violation, Violations};

/// A configuration with a part put into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The whole.
    pub document: Document,
    /// How many providers, connections, combos and keys stand that the part does not name.
    pub untouched: usize,
}

impl Document {
    /// This document with a part put into it.
    ///
    /// # Errors
    /// What the part names twice, and what is wrong with its settings. Whether the whole makes sense is not looked at.
    pub fn merged_with(&self, part: Self) -> Result<Merged, Vec<Violation>> {
        let mut found = Violations::default();
        let mut document = self.clone();
        let mut untouched = 0_usize;
        let counted = [
            put(
                "providers",
                &mut document.providers,
                part.providers,
                |it| it.id.as_str(),
                &mut found,
            ),
            put(
                "connections",
                &mut document.connections,
                part.connections,
                |it| it.id.as_str(),
                &mut found,
            ),
            put(
                "combos",
                &mut document.combos,
                part.combos,
                |it| it.name.as_str(),
                &mut found,
            ),
            put(
                "keys",
                &mut document.keys,
                part.keys,
                |it| it.id.as_str(),
                &mut found,
            ),
        ];
        for count in counted {
            untouched = untouched.saturating_add(count);
        }
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
}

/// Puts the entries of a part into a list by their names. Returns how many of the list it does not name.
fn put<T>(
    list: &str,
    all: &mut Vec<T>,
    part: Vec<T>,
    name: impl Fn(&T) -> &str,
    found: &mut Violations,
) -> usize {
    let before = all.len();
    let places: BTreeMap<String, usize> = all
        .iter()
        .enumerate()
        .map(|(place, it)| (name(it).to_owned(), place))
        .collect();
    let mut named = BTreeSet::new();
    let mut replaced = 0_usize;
    for (index, item) in part.into_iter().enumerate() {
        let own = name(&item).to_owned();
        if named.contains(&own) {
            found.push(
                format!("{list}[{index}]"),
                format!("{own} is named more than once"),
            );
            continue;
        }
        let place = places.get(&own).copied().unwrap_or(usize::MAX);
        if let Some(standing) = all.get_mut(place) {
            *standing = item;
            replaced = replaced.saturating_add(1);
        } else {
            all.push(item);
        }
        named.insert(own);
    }
    before.saturating_sub(replaced)
}
