//! The targets are there and call what is here, and their seeds pass. Nothing else looks at the targets before somebody
//! fuzzes: they are a workspace of their own, which needs nightly.

use std::fs;
use std::path::Path;

use super::*;

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz");

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(FUZZ).join("seeds").join(target);
    let files = fs::read_dir(folder).unwrap();
    files
        .map(|file| fs::read(file.unwrap().path()).unwrap())
        .collect()
}

macro_rules! targets {
    ($($name:ident),*) => {
        [$((stringify!($name), $name as fn(&[u8]))),*]
    };
}

#[test]
fn targets_call_what_is_here_and_their_seeds_pass() {
    for (name, holds) in targets!(hints, body, settings) {
        let target = fs::read_to_string(format!("{FUZZ}/fuzz_targets/{name}.rs")).unwrap();
        let call = format!("fuzz_target!(|data: &[u8]| tidegate_core::fuzzing::{name}(data));");
        assert!(target.contains(&call), "{target}");
        let manifest = fs::read_to_string(format!("{FUZZ}/Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name}");
        for seed in seeds {
            holds(&seed);
        }
    }
}

#[test]
fn seeds_of_settings_are_documents_and_settings() {
    let seeds = seeds("settings");
    let builds = |seed: &Vec<u8>| {
        let document = serde_json::from_slice::<Document>(seed).ok()?;
        Config::build(document, 1, &Overrides::default()).ok()
    };
    assert!(seeds.iter().any(|seed| builds(seed).is_some()));
    let is_good = |seed: &Vec<u8>| {
        serde_json::from_slice::<Settings>(seed).is_ok_and(|read| read.violations().is_empty())
    };
    assert!(seeds.iter().any(is_good));
}
