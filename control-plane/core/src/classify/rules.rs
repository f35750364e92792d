//! What errors of single providers mean: operator rules, then built-in ones, and phrases that an operator takes for a
//! ban (`failure-state.md` §3.7, §5; decisions 16 to 19 and 21).
//!
//! A [`RuleBook`] is made of the settings once per configuration and shared; a failure costs one pass over its text,
//! and none where the provider has no rule.
//!
//! Two lists of the settings say what a provider's rules may do (decision 18): see the *full text* of the body rather
//! than its code and type alone, and have their *scope honoured* rather than kept as a label. A provider with an
//! operator rule is on both. Restatement and ban phrases always see the full text.
//!
//! | room | what it holds |
//! |---|---|
//! | `registry` | the built-in rules, as data |
//! | `texts` | looking for many texts at once |
//! | `verdicts` | what a rule that matches does |

mod registry;
#[cfg(test)]
mod tests;
mod texts;
mod verdicts;

use std::borrow::Cow;
use std::sync::Arc;

use crate::ids::{ProviderId, RuleId};
use crate::settings::{ProviderErrorRule, RuleScope, Settings};

use super::evidence::Evidence;
use super::restate::Restatement;
use super::{Classification, Origin, Reason};

use registry::{BUILT_IN, Condition, Registry, RuleLength, RuleRow};
use texts::{Occurring, TextId, TextList, Texts};

pub(super) use verdicts::{banned_by_phrase, labelled, provider_rule};

/// Longest cooldown that a body may state to a rule, in ms: 30 days (decision 4).
const MAX_STATED_MS: u64 = 30 * 86_400_000;

/// Everything that the rules about one provider say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RuleBook {
    texts: Texts,
    restatements: Vec<RestatementEntry>,
    rules: Vec<Rule>,
    ban_phrases: Vec<(RuleId, TextId)>,
    budget_phrases: Vec<TextId>,
    auto_disable: bool,
    sees_full_text: bool,
    honours_scope: bool,
}

/// The rule books of one configuration. Providers without a rule of their own share one.
#[derive(Debug)]
pub(crate) struct RuleBooks<'a> {
    registry: Registry,
    settings: &'a Settings,
    shared: Arc<RuleBook>,
}

/// A restatement whose texts can be looked for.
#[derive(Debug, PartialEq, Eq)]
struct RestatementEntry {
    row: &'static Restatement,
    id: RuleId,
    any: Vec<TextId>,
    none: Vec<TextId>,
}

/// A rule whose texts can be looked for.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    id: RuleId,
    statuses: Cow<'static, [u16]>,
    condition: Matcher,
    reason: Reason,
    scope: RuleScope,
    length: RuleLength,
}

/// A [`Condition`] whose texts can be looked for.
#[derive(Debug, PartialEq, Eq)]
enum Matcher {
    Status,
    Text {
        any: Vec<TextId>,
        none: Vec<TextId>,
    },
    Header {
        names: &'static [&'static str],
        value: &'static str,
    },
    ZeroInList {
        header: &'static str,
    },
}

/// Which texts an answer holds.
#[derive(Debug, Default)]
pub(super) struct Reading {
    body: Occurring,
    /// What the rules may see, where that is less than the body.
    code: Option<Occurring>,
}

/// A rule that matches an answer.
#[derive(Clone, Copy, Debug)]
struct Matched<'a> {
    rule: &'a Rule,
    /// How long it asks for, in ms, if it does.
    ms: Option<u64>,
}

impl<'a> RuleBooks<'a> {
    /// The rule books that settings make of what is built in.
    pub(crate) fn new(settings: &'a Settings) -> Self {
        Self::with(BUILT_IN, settings)
    }

    fn with(registry: Registry, settings: &'a Settings) -> Self {
        let mut list = TextList::default();
        let ban_phrases = ban_phrases(settings, &mut list);
        let budget_phrases = budget_phrases(settings, &mut list);
        Self {
            registry,
            settings,
            shared: Arc::new(RuleBook {
                texts: list.compile(),
                ban_phrases,
                budget_phrases,
                auto_disable: settings.ban_detection.auto_disable,
                ..RuleBook::default()
            }),
        }
    }

    /// The book of one provider.
    pub(crate) fn of(&self, provider: &ProviderId) -> Arc<RuleBook> {
        let name = provider.as_str();
        let written = self.settings.provider_error_rules.get(provider);
        let written = written.map(Vec::as_slice).unwrap_or_default();
        let rows: Vec<&'static RuleRow> = self
            .registry
            .rules
            .iter()
            .filter(|row| row.providers.contains(&name))
            .collect();
        let restatements: Vec<&'static Restatement> = self
            .registry
            .restatements
            .iter()
            .filter(|row| row.provider == name)
            .collect();
        if written.is_empty() && rows.is_empty() && restatements.is_empty() {
            return Arc::clone(&self.shared);
        }
        let lists = &self.settings.error_rules;
        let exempt = !written.is_empty();
        let mut list = TextList::default();
        let ban_phrases = ban_phrases(self.settings, &mut list);
        let budget_phrases = budget_phrases(self.settings, &mut list);
        let restatements = restatements
            .into_iter()
            .filter_map(|row| RestatementEntry::of(row, &mut list))
            .collect();
        let mut rules: Vec<Rule> = written
            .iter()
            .enumerate()
            .filter_map(|(index, rule)| Rule::written(provider, index, rule, &mut list))
            .collect();
        rules.extend(
            rows.into_iter()
                .filter_map(|row| Rule::built_in(row, &mut list)),
        );
        Arc::new(RuleBook {
            texts: list.compile(),
            restatements,
            rules,
            ban_phrases,
            budget_phrases,
            auto_disable: self.settings.ban_detection.auto_disable,
            sees_full_text: exempt || lists.full_text_providers.contains(provider),
            honours_scope: exempt || lists.scope_providers.contains(provider),
        })
    }
}

fn ban_phrases(settings: &Settings, list: &mut TextList) -> Vec<(RuleId, TextId)> {
    let phrases = settings.ban_detection.extra_phrases.iter().enumerate();
    phrases
        .filter_map(|(index, phrase)| {
            let id = RuleId::new(format!("operator:ban-phrase:{index}")).ok()?;
            Some((id, list.add(phrase)))
        })
        .collect()
}

fn budget_phrases(settings: &Settings, list: &mut TextList) -> Vec<TextId> {
    let phrases = settings.emergency_fallback.phrases.iter();
    phrases.map(|phrase| list.add(phrase)).collect()
}

fn add_all(texts: &[&str], list: &mut TextList) -> Vec<TextId> {
    texts.iter().map(|text| list.add(text)).collect()
}

impl RestatementEntry {
    /// `None` for a row whose id is none; a test keeps such rows out of the table.
    fn of(row: &'static Restatement, list: &mut TextList) -> Option<Self> {
        Some(Self {
            row,
            id: RuleId::new(row.id).ok()?,
            any: add_all(row.any, list),
            none: add_all(row.none, list),
        })
    }
}

impl Rule {
    fn written(
        provider: &ProviderId,
        index: usize,
        rule: &ProviderErrorRule,
        list: &mut TextList,
    ) -> Option<Self> {
        Some(Self {
            id: RuleId::new(format!("operator:{provider}:{index}")).ok()?,
            statuses: Cow::Owned(vec![rule.status]),
            condition: Matcher::Text {
                any: vec![list.add(&rule.text)],
                none: Vec::new(),
            },
            reason: rule.reason,
            scope: rule.scope,
            length: rule
                .cooldown_ms
                .map_or(RuleLength::OfStatus, RuleLength::Ms),
        })
    }

    /// `None` for a row whose id is none; a test keeps such rows out of the table.
    fn built_in(row: &RuleRow, list: &mut TextList) -> Option<Self> {
        Some(Self {
            id: RuleId::new(row.id).ok()?,
            statuses: Cow::Borrowed(row.statuses),
            condition: match row.condition {
                Condition::Status => Matcher::Status,
                Condition::Text { any, none } => Matcher::Text {
                    any: add_all(any, list),
                    none: add_all(none, list),
                },
                Condition::Header { names, value } => Matcher::Header { names, value },
                Condition::ZeroInList { header } => Matcher::ZeroInList { header },
            },
            reason: row.reason,
            scope: row.scope,
            length: row.length,
        })
    }
}

impl RuleBook {
    /// A ban also switches the connection off (`failure-state.md` §3.8-20).
    #[must_use]
    pub fn auto_disable(&self) -> bool {
        self.auto_disable
    }

    /// Reads an answer once for everything that looks for texts.
    pub(super) fn read(&self, text: &str, code: &str, kind: &str) -> Reading {
        if self.texts.is_empty() {
            return Reading::default();
        }
        let code = (!self.sees_full_text && !self.rules.is_empty())
            .then(|| self.texts.find(&format!("{code}\n{kind}")));
        Reading {
            body: self.texts.find(text),
            code,
        }
    }

    /// The restatement that an answer asks for, if one does. An error inside a 200 stream that says nothing of its
    /// status is told by its words alone (decision 16).
    pub(super) fn restate(&self, status: Option<u16>, reading: &Reading) -> Option<Restated<'_>> {
        self.restatements
            .iter()
            .find(|entry| {
                status.is_none_or(|status| entry.row.from.contains(&status))
                    && reading.body.has_any(&entry.any)
                    && !reading.body.has_any(&entry.none)
            })
            .map(|entry| Restated {
                row: entry.row,
                id: &entry.id,
            })
    }

    /// The text says that money or quota is used up (`routing.md` §13.4).
    pub(super) fn speaks_of_budget(&self, evidence: &Evidence<'_>) -> bool {
        evidence.reading.body.has_any(&self.budget_phrases)
    }

    /// The first phrase of the operator's that means a ban.
    fn ban_phrase(&self, reading: &Reading) -> Option<&RuleId> {
        self.ban_phrases
            .iter()
            .find(|(_, text)| reading.body.has(*text))
            .map(|(id, _)| id)
    }

    /// The first rule that matches an answer.
    fn matching(&self, evidence: &Evidence<'_>) -> Option<Matched<'_>> {
        self.rules.iter().find_map(|rule| {
            let matches = rule.statuses.contains(&evidence.status) && rule.holds(evidence);
            if !matches {
                return None;
            }
            let ms = match rule.length {
                RuleLength::OfStatus => None,
                RuleLength::Ms(ms) => Some(ms),
                RuleLength::ResetsIn if self.sees_full_text => Some(stated_reset(&evidence.text)?),
                RuleLength::ResetsIn => return None,
            };
            Some(Matched { rule, ms })
        })
    }
}

/// A restatement that an answer asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restated<'a> {
    /// The row.
    pub(super) row: &'static Restatement,
    /// Its id.
    pub(super) id: &'a RuleId,
}

impl Restated<'_> {
    /// Notes on a classification what the upstream had sent, and what the client is told if the upstream asked for no
    /// wait.
    pub(super) fn mark(self, classification: Classification, sent: u16) -> Classification {
        let rule = match classification.origin {
            Some(origin) => origin.rule,
            None => self.id.clone(),
        };
        let default_ms = classification
            .hint
            .is_none()
            .then_some(self.row.default_retry_ms);
        Classification {
            advertised_ms: default_ms,
            origin: Some(Origin {
                rule,
                original_status: Some(sent),
            }),
            ..classification
        }
    }
}

impl Reading {
    /// What rules may see.
    fn of_rules(&self) -> &Occurring {
        self.code.as_ref().unwrap_or(&self.body)
    }
}

impl Rule {
    fn holds(&self, evidence: &Evidence<'_>) -> bool {
        match &self.condition {
            Matcher::Status => true,
            Matcher::Text { any, none } => {
                let texts = evidence.reading.of_rules();
                texts.has_any(any) && !texts.has_any(none)
            }
            Matcher::Header { names, value } => names
                .iter()
                .any(|name| evidence.header(name).map(str::trim) == Some(*value)),
            Matcher::ZeroInList { header } => evidence.header(header).is_some_and(has_zero),
        }
    }
}

/// Whether a list such as `a=3, b=0` names a number that is 0.
fn has_zero(list: &str) -> bool {
    list.split(',')
        .filter_map(|entry| entry.split_once('='))
        .any(|(_, number)| number.trim().parse() == Ok(0_u64))
}

/// The wait in the first "resets in N days" (hours, minutes, seconds) of a lower-case text, in ms; at most
/// [`MAX_STATED_MS`].
fn stated_reset(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 4] = [
        ("day", 86_400_000),
        ("hour", 3_600_000),
        ("minute", 60_000),
        ("second", 1_000),
    ];
    text.match_indices("resets in ")
        .find_map(|(start, introduction)| {
            let rest = text.get(start.saturating_add(introduction.len())..)?;
            let digits = rest.find(|it: char| !it.is_ascii_digit())?;
            let (number, unit) = rest.split_at_checked(digits)?;
            let unit = unit.trim_start();
            let (_, unit_ms) = UNITS.iter().find(|(name, _)| unit.starts_with(name))?;
            let ms = number.parse::<u64>().ok()?.saturating_mul(*unit_ms);
            (ms > 0).then_some(ms.min(MAX_STATED_MS))
        })
}
