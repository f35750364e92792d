//! How the control plane is: what of it is not as it should be, as far as one replica knows. Requests may well go on
//! (`architecture.md` §4.7), but somebody should look.
//!
//! What providers do is no part of it: their breakers and cooldowns are the product at work.

/// What a replica sees of itself and its surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// The hot store answers.
    pub hot_store_answers: bool,
    /// The durable store answers.
    pub durable_store_answers: bool,
    /// The view follows the hot store.
    pub view_follows: bool,
    /// There is a configuration.
    pub is_configured: bool,
    /// A data plane that follows this replica got a configuration that it cannot use.
    pub configuration_refused: bool,
}

/// One thing that is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Degraded {
    /// Permits are given out by local shares, and what happens is kept until it can be written.
    HotStoreAway,
    /// No new leases and no changes of the configuration.
    DurableStoreAway,
    /// Decisions rest on what was known a while ago.
    ViewStale,
    /// Nothing can be decided.
    NoConfiguration,
    /// A data plane goes on with an older configuration.
    ConfigurationRefused,
}

impl Degraded {
    /// Its word, which stays.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::HotStoreAway => "hot_store_away",
            Self::DurableStoreAway => "durable_store_away",
            Self::ViewStale => "view_stale",
            Self::NoConfiguration => "no_configuration",
            Self::ConfigurationRefused => "configuration_refused",
        }
    }
}

/// Everything that is not as it should be; empty: all is well.
#[must_use]
pub fn degraded(seen: Surroundings) -> Vec<Degraded> {
    let all = [
        (!seen.hot_store_answers, Degraded::HotStoreAway),
        (!seen.durable_store_answers, Degraded::DurableStoreAway),
        (!seen.view_follows, Degraded::ViewStale),
        (!seen.is_configured, Degraded::NoConfiguration),
        (seen.configuration_refused, Degraded::ConfigurationRefused),
    ];
    let found = all.into_iter().filter(|(is_so, _)| *is_so);
    found.map(|(_, what)| what).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const WELL: Surroundings = Surroundings {
        hot_store_answers: true,
        durable_store_answers: true,
        view_follows: true,
        is_configured: true,
        configuration_refused: false,
    };

    #[rstest]
    #[case::well(WELL, &[])]
    #[case::hot(Surroundings { hot_store_answers: false, ..WELL }, &["hot_store_away"])]
    #[case::durable(Surroundings { durable_store_answers: false, ..WELL }, &["durable_store_away"])]
    #[case::stale(Surroundings { view_follows: false, ..WELL }, &["view_stale"])]
    #[case::empty(Surroundings { is_configured: false, ..WELL }, &["no_configuration"])]
    #[case::refused(Surroundings { configuration_refused: true, ..WELL }, &["configuration_refused"])]
    #[case::alone(
        Surroundings { hot_store_answers: false, durable_store_answers: false, view_follows: false, ..WELL },
        &["hot_store_away", "durable_store_away", "view_stale"],
    )]
    fn each_thing_that_is_amiss_is_named(#[case] seen: Surroundings, #[case] expected: &[&str]) {
        let words: Vec<&str> = degraded(seen).into_iter().map(Degraded::word).collect();
        assert_eq!(words, expected);
    }
}
