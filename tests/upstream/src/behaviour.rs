//! Which mode a request gets.

use parking_lot::Mutex;

use crate::mode::Mode;
use crate::selector::{Selector, Subject};

/// What the upstream does with the requests of one [`Selector`].
#[derive(Debug, Clone, PartialEq)]
pub enum Behaviour {
    /// The same for each.
    Always(Mode),
    /// One mode per request in the order of arrival; after the last, [`Mode::Ok`].
    Script(Vec<Mode>),
    /// One mode per request, over and over; an empty list is [`Mode::Ok`].
    Cycle(Vec<Mode>),
}

impl From<Mode> for Behaviour {
    fn from(mode: Mode) -> Self {
        Self::Always(mode)
    }
}

impl<const N: usize> From<[Mode; N]> for Behaviour {
    fn from(script: [Mode; N]) -> Self {
        Self::Script(script.into())
    }
}

impl From<Vec<Mode>> for Behaviour {
    fn from(script: Vec<Mode>) -> Self {
        Self::Script(script)
    }
}

#[derive(Debug)]
struct Rule {
    selector: Selector,
    behaviour: Behaviour,
    /// How many requests it has decided.
    used: usize,
}

/// The rules in force. The most specific one that matches decides: a credential outweighs a model, a model a path.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    rules: Mutex<Vec<Rule>>,
}

impl Rules {
    /// Replaces the rule of the same selector; a script starts anew.
    pub(crate) fn set(&self, selector: Selector, behaviour: Behaviour) {
        let mut rules = self.rules.lock();
        rules.retain(|rule| rule.selector != selector);
        rules.push(Rule {
            selector,
            behaviour,
            used: 0,
        });
        // Stable, so the order of equals is that of their setting.
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.selector.specificity()));
    }

    pub(crate) fn clear(&self) {
        self.rules.lock().clear();
    }

    pub(crate) fn next(&self, subject: &Subject) -> Mode {
        let mut rules = self.rules.lock();
        let Some(rule) = rules.iter_mut().find(|rule| rule.selector.matches(subject)) else {
            return Mode::Ok;
        };
        let used = rule.used;
        rule.used = used.wrapping_add(1);
        match &rule.behaviour {
            Behaviour::Always(mode) => mode.clone(),
            Behaviour::Script(modes) => modes.get(used).cloned().unwrap_or_default(),
            Behaviour::Cycle(modes) => {
                let place = used.checked_rem(modes.len()).unwrap_or_default();
                modes.get(place).cloned().unwrap_or_default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(model: &str, credential: &str) -> Subject {
        Subject {
            model: Some(model.to_owned()),
            credential: Some(credential.to_owned()),
            path: "/v1/messages".to_owned(),
        }
    }

    #[test]
    fn the_most_specific_rule_decides() {
        let rules = Rules::default();
        rules.set(Selector::any().credential("b"), Mode::Hang.into());
        rules.set(Selector::any(), Mode::Reset.into());
        rules.set(Selector::any().model("m"), Mode::status(500).into());
        rules.set(
            Selector::any().model("m").credential("b"),
            Mode::status(501).into(),
        );
        assert_eq!(rules.next(&subject("x", "a")), Mode::Reset);
        assert_eq!(rules.next(&subject("x", "b")), Mode::Hang);
        assert_eq!(rules.next(&subject("m", "a")), Mode::status(500));
        assert_eq!(rules.next(&subject("m", "b")), Mode::status(501));
        rules.clear();
        assert_eq!(rules.next(&subject("m", "b")), Mode::Ok);
    }

    #[test]
    fn a_script_ends_in_ok_and_a_cycle_begins_again() {
        let rules = Rules::default();
        let modes = || vec![Mode::Reset, Mode::Hang];
        rules.set(Selector::any(), Behaviour::Script(modes()));
        let three = || [(); 3].map(|()| rules.next(&subject("m", "a")));
        assert_eq!(three(), [Mode::Reset, Mode::Hang, Mode::Ok]);
        rules.set(Selector::any(), Behaviour::Cycle(modes()));
        assert_eq!(three(), [Mode::Reset, Mode::Hang, Mode::Reset]);
        rules.set(Selector::any(), Behaviour::Cycle(Vec::new()));
        assert_eq!(three(), [Mode::Ok, Mode::Ok, Mode::Ok]);
    }
}
