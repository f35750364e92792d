//! How much each factor counts: the defaults, six packs for a purpose, or an operator's own (`routing.md` §9.2, §9.3,
//! §9.6).
//!
//! Whatever they are written as, weights are divided by their sum, so that scores of any two sets compare.

use std::collections::BTreeMap;

use crate::config::AutoConfig;
use crate::number::Finite;

use super::factors::{FACTORS, Factors, unit};

/// A set of weights for a purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pack {
    ShipFast,
    CostSaver,
    QualityFirst,
    OfflineFriendly,
    ReliabilityFirst,
    Chaos,
}

/// Packs by their names, in the order of the columns of [`TABLE`].
const PACKS: [(&str, Pack); 6] = [
    ("ship-fast", Pack::ShipFast),
    ("cost-saver", Pack::CostSaver),
    ("quality-first", Pack::QualityFirst),
    ("offline-friendly", Pack::OfflineFriendly),
    ("reliability-first", Pack::ReliabilityFirst),
    ("chaos-mode", Pack::Chaos),
];

/// Modes with the pack that each stands for, where it is one.
const MODES: [(&str, Option<Pack>); 7] = [
    ("fast", Some(Pack::ShipFast)),
    ("balanced", None),
    ("default", None),
    ("quality", Some(Pack::QualityFirst)),
    ("cheap", Some(Pack::CostSaver)),
    ("reliable", Some(Pack::ReliabilityFirst)),
    ("offline", Some(Pack::OfflineFriendly)),
];

/// Name, default weight and weight in each pack, in the order of [`Factors::values`].
#[rustfmt::skip]
const TABLE: [(&str, f64, [f64; PACKS.len()]); FACTORS] = [
    ("quota",               0.1429, [0.1133, 0.1133, 0.0752, 0.3324, 0.1133, 0.0376]),
    ("health",              0.1605, [0.2667, 0.1810, 0.1714, 0.2667, 0.3524, 0.4000]),
    ("costInv",             0.1429, [0.0276, 0.3324, 0.0276, 0.0752, 0.0181, 0.0140]),
    ("latencyInv",          0.1143, [0.3048, 0.0476, 0.0476, 0.0476, 0.0476, 0.0186]),
    ("taskFit",             0.0762, [0.0952, 0.0952, 0.3524, 0.0,    0.0952, 0.1905]),
    ("stability",           0.0476, [0.0,    0.0476, 0.1429, 0.0952, 0.1905, 0.1714]),
    ("tierPriority",        0.0476, [0.0376, 0.0376, 0.0276, 0.0376, 0.0276, 0.0040]),
    ("tierAffinity",        0.0476, [0.0,    0.0,    0.0,    0.0,    0.0,    0.0   ]),
    ("specificityMatch",    0.0476, [0.0,    0.0,    0.0,    0.0,    0.0,    0.0   ]),
    ("contextAffinity",     0.0476, [0.0095, 0.0,    0.0,    0.0,    0.0,    0.0186]),
    ("sessionAvailability", 0.0476, [0.0476, 0.0476, 0.0476, 0.0476, 0.0476, 0.0476]),
    ("connectionDensity",   0.0476, [0.0476, 0.0476, 0.0476, 0.0476, 0.0476, 0.0476]),
    ("cacheAffinity",       0.0,    [0.0,    0.0,    0.0,    0.0,    0.0,    0.0   ]),
    ("resetWindowAffinity", 0.0,    [0.0,    0.0,    0.0,    0.0,    0.0,    0.0   ]),
    ("quality",             0.03,   [0.02,   0.02,   0.03,   0.02,   0.02,   0.02  ]),
    ("reliability",         0.0,    [0.03,   0.03,   0.03,   0.03,   0.04,   0.03  ]),
];

/// Position of `cacheAffinity`, the only factor that is dear to find out.
const CACHE_AFFINITY: usize = 12;

/// One weight per factor, 0..=1, 1 together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weights([f64; FACTORS]);

impl Default for Weights {
    fn default() -> Self {
        Self::column(|(_, default, _)| *default)
    }
}

impl Weights {
    /// What counts: a known mode of the request, else the combo's pack, else its own weights, else the defaults.
    pub(super) fn of(mode: Option<&str>, config: Option<&AutoConfig>) -> Self {
        let pack = match mode.and_then(mode_named) {
            Some(pack) => pack,
            None => config
                .and_then(|config| config.mode_pack.as_deref())
                .and_then(pack_named),
        };
        let custom = config.and_then(|config| config.weights.as_ref());
        match (pack, custom) {
            (Some(pack), _) => Self::pack(pack),
            (None, Some(weights)) => Self::custom(weights),
            (None, None) => Self::default(),
        }
    }

    pub(super) fn pack(pack: Pack) -> Self {
        Self::column(|(.., packs)| {
            let column = PACKS.iter().zip(packs).find(|((_, of), _)| *of == pack);
            column.map_or(0.0, |(_, weight)| *weight)
        })
    }

    /// An operator's weights by name. What is not named does not count; without any that counts, the defaults do.
    fn custom(weights: &BTreeMap<String, Finite>) -> Self {
        Self::column(|(name, ..)| weights.get(*name).map_or(0.0, |weight| weight.get()))
    }

    fn column(weight: impl Fn(&(&str, f64, [f64; PACKS.len()])) -> f64) -> Self {
        let written = TABLE.each_ref().map(weight);
        normalised(written).map_or_else(Self::default, Self)
    }

    /// Whether it matters who has the prompt in its cache.
    pub(super) fn cache_affinity(&self) -> bool {
        self.0
            .get(CACHE_AFFINITY)
            .is_some_and(|weight| *weight > 0.0)
    }

    /// The weighted sum of the factors, 0..=1.
    pub(super) fn score(&self, factors: &Factors) -> f64 {
        let products = self
            .0
            .iter()
            .zip(factors.values())
            .map(|(weight, factor)| weight * factor);
        unit(products.sum())
    }
}

/// Divides by the sum; what is negative or no number counts as 0. `None` when nothing is left.
fn normalised(written: [f64; FACTORS]) -> Option<[f64; FACTORS]> {
    let counting = written.map(|weight| {
        if weight.is_finite() {
            weight.max(0.0)
        } else {
            0.0
        }
    });
    let largest = counting.iter().copied().fold(0.0, f64::max);
    if largest <= 0.0 {
        return None;
    }
    // By the largest first, so that the sum of very large ones is finite.
    let scaled = counting.map(|weight| weight / largest);
    let total: f64 = scaled.iter().sum();
    Some(scaled.map(|weight| weight / total))
}

/// Every mode, packs included, with the name of the pack that it stands for.
pub(crate) fn modes() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let name = |wanted| PACKS.iter().find(|(_, pack)| *pack == wanted);
    let modes = MODES
        .iter()
        .map(move |(mode, pack)| (*mode, pack.and_then(name).map(|(name, _)| *name)));
    modes.chain(PACKS.iter().map(|(name, _)| (*name, Some(*name))))
}

/// Whether there is a factor of this name.
pub(crate) fn is_factor(name: &str) -> bool {
    TABLE.iter().any(|(known, ..)| *known == name)
}

/// Whether there is a pack of this name.
pub(crate) fn is_pack(name: &str) -> bool {
    pack_named(name).is_some()
}

fn pack_named(name: &str) -> Option<Pack> {
    PACKS
        .iter()
        .find(|(known, _)| name.eq_ignore_ascii_case(known))
        .map(|(_, pack)| *pack)
}

/// The pack that a mode of a request stands for, `Some(None)` for the mode without one; `None` when there is no such
/// mode.
fn mode_named(name: &str) -> Option<Option<Pack>> {
    let mode = MODES
        .iter()
        .find(|(known, _)| name.eq_ignore_ascii_case(known))
        .map(|(_, pack)| *pack);
    mode.or_else(|| pack_named(name).map(Some))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn config(weights: &[(&str, f64)], pack: Option<&str>) -> AutoConfig {
        let weights = weights
            .iter()
            .map(|(name, weight)| ((*name).to_owned(), Finite::new(*weight).unwrap()));
        AutoConfig {
            weights: Some(weights.collect()),
            mode_pack: pack.map(str::to_owned),
            ..AutoConfig::default()
        }
    }

    #[test]
    fn rows_are_in_the_order_of_the_factors() {
        let text = format!("{:?}", Factors::default());
        let camel = |field: &str| {
            let mut words = field.split('_');
            let first = words.next().unwrap_or_default().to_owned();
            words.fold(first, |name, word| {
                let (initial, rest) = word.split_at(1);
                name + &initial.to_uppercase() + rest
            })
        };
        let fields: Vec<String> = text
            .split([' ', ':', '{', '}', ','])
            .filter(|word| word.starts_with(|letter: char| letter.is_ascii_lowercase()))
            .map(camel)
            .collect();
        let names: Vec<&str> = TABLE.iter().map(|(name, ..)| *name).collect();
        assert_eq!(fields, names);
        assert_eq!(TABLE[CACHE_AFFINITY].0, "cacheAffinity");
    }

    #[test]
    fn values_are_in_the_order_of_the_rows() {
        let only_health = Factors {
            health: 1.0,
            ..Factors::default()
        };
        let only_reliability = Factors {
            reliability: 1.0,
            ..Factors::default()
        };
        let weights = Weights::custom(
            &config(&[("health", 1.0), ("reliability", 3.0)], None)
                .weights
                .unwrap(),
        );
        assert_eq!(weights.score(&only_health), 0.25);
        assert_eq!(weights.score(&only_reliability), 0.75);
    }

    #[test]
    fn the_page_prints_the_weights_in_force() {
        let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/auto.md"));
        let mut names = vec!["default".to_owned()];
        names.extend(PACKS.map(|(name, _)| format!("`{name}`")));
        assert!(page.contains(&format!("| factor | {} |", names.join(" | "))));
        for (name, default, packs) in TABLE {
            let weights = packs.map(|weight| weight.to_string()).join(" | ");
            let row = format!("| `{name}` | {default} | {weights} |");
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn every_set_adds_up_as_printed() {
        let defaults: f64 = TABLE.iter().map(|(_, default, _)| default).sum();
        assert!((defaults - 1.0).abs() < 1e-9);
        for (column, (name, _)) in PACKS.iter().enumerate() {
            let sum: f64 = TABLE.iter().map(|(.., packs)| packs[column]).sum();
            assert!((sum - 0.9999).abs() < 1e-9, "{name}");
        }
    }

    #[rstest]
    #[case::only_zeros(&[("quota", 0.0), ("health", 0.0)])]
    #[case::only_negative(&[("quota", -1.0)])]
    #[case::unknown_names(&[("luck", 1.0)])]
    #[case::none(&[])]
    fn without_a_weight_that_counts_the_defaults_do(#[case] weights: &[(&str, f64)]) {
        assert_eq!(
            Weights::of(None, Some(&config(weights, None))),
            Weights::default()
        );
    }

    #[rstest]
    #[case::negative(&[("quota", 1.0), ("health", -5.0)], 1.0, 0.0)]
    #[case::shares(&[("quota", 30.0), ("health", 10.0)], 0.75, 0.25)]
    #[case::huge(&[("quota", f64::MAX), ("health", f64::MAX)], 0.5, 0.5)]
    #[case::tiny(&[("quota", 1e-300), ("health", 3e-300)], 0.25, 0.75)]
    fn own_weights_are_brought_to_one(
        #[case] weights: &[(&str, f64)],
        #[case] quota: f64,
        #[case] health: f64,
    ) {
        let found = Weights::of(None, Some(&config(weights, None)));
        assert!((found.0[0] - quota).abs() < 1e-12, "{found:?}");
        assert!((found.0[1] - health).abs() < 1e-12, "{found:?}");
        assert_eq!(found.0[2..].iter().sum::<f64>(), 0.0);
    }

    #[test]
    fn what_is_no_number_counts_as_nothing() {
        let mut written = [0.0; FACTORS];
        written[0] = f64::NAN;
        written[1] = f64::INFINITY;
        assert_eq!(normalised(written), None);
        written[2] = 2.0;
        assert_eq!(normalised(written).unwrap()[2], 1.0);
    }

    #[rstest]
    #[case::fast(Some("fast"), None, Some(Pack::ShipFast))]
    #[case::quality(Some("QUALITY"), None, Some(Pack::QualityFirst))]
    #[case::cheap(Some("cheap"), Some("ship-fast"), Some(Pack::CostSaver))]
    #[case::reliable(Some("reliable"), None, Some(Pack::ReliabilityFirst))]
    #[case::offline(Some("offline"), None, Some(Pack::OfflineFriendly))]
    #[case::pack_as_mode(Some("chaos-mode"), None, Some(Pack::Chaos))]
    #[case::unknown_mode(Some("warp"), Some("ship-fast"), Some(Pack::ShipFast))]
    #[case::pack(None, Some("cost-saver"), Some(Pack::CostSaver))]
    #[case::mode_is_no_pack(None, Some("fast"), None)]
    #[case::balanced(Some("balanced"), Some("ship-fast"), None)]
    #[case::default(Some("default"), Some("ship-fast"), None)]
    fn the_mode_of_the_request_comes_first(
        #[case] mode: Option<&str>,
        #[case] pack: Option<&str>,
        #[case] expected: Option<Pack>,
    ) {
        let own = config(&[("quota", 1.0)], pack);
        let expected = match expected {
            Some(pack) => Weights::pack(pack),
            None => Weights::custom(own.weights.as_ref().unwrap()),
        };
        assert_eq!(Weights::of(mode, Some(&own)), expected);
    }
}
