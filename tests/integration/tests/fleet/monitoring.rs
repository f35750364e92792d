//! The alert rules and the dashboard in `deploy/` ask for what the programs serve.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tidegate_integration::{World, chat, send};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
/// What Prometheus makes of histograms.
const HISTOGRAM_SUFFIXES: [&str; 3] = ["_bucket", "_count", "_sum"];

/// What is served: names of samples, and the labels that each was seen with.
type Served = BTreeMap<String, BTreeSet<String>>;

fn read(text: &str, served: &mut Served) {
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let mut words = described.split(' ');
            let (Some(name), Some(kind)) = (words.next(), words.next()) else {
                continue;
            };
            let names: Vec<String> = match kind {
                "counter" => vec![format!("{name}_total")],
                "histogram" => HISTOGRAM_SUFFIXES
                    .map(|suffix| format!("{name}{suffix}"))
                    .to_vec(),
                _ => vec![name.to_owned()],
            };
            for name in names {
                served.entry(name).or_default();
            }
        } else if let Some((name, labels)) = line.split_once('{') {
            let labels = labels.split('}').next().unwrap_or_default();
            let seen = served.entry(name.to_owned()).or_default();
            seen.extend(
                labels
                    .split(',')
                    .filter_map(|label| Some(label.split_once('=')?.0.to_owned())),
            );
        }
    }
}

/// Names of ours in a text, each with the labels that are asked for in the braces behind it.
fn asked(text: &str) -> Vec<(String, Vec<String>)> {
    let ours = |name: &str| name.starts_with("tidegate_cp_") || name.starts_with("tidegate_dp_");
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((word, behind)) = next_word(rest) {
        if ours(word) {
            let labels = behind
                .strip_prefix('{')
                .and_then(|inside| inside.split('}').next())
                .unwrap_or_default()
                .split(',')
                .filter_map(|label| Some(label.split_once(['=', '!'])?.0.trim().to_owned()));
            found.push((word.to_owned(), labels.collect()));
        }
        rest = behind;
    }
    found
}

/// The first word of letters, digits and underscores, and what is behind it.
fn next_word(text: &str) -> Option<(&str, &str)> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let word = text.trim_start_matches(|character| !is_part(character));
    let end = word.find(|character| !is_part(character));
    let split = word.split_at_checked(end.unwrap_or(word.len()))?;
    (!split.0.is_empty()).then_some(split)
}

fn expressions(panels: &Value) -> Vec<String> {
    let targets = panels.as_array().into_iter().flatten();
    targets
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .filter_map(|target| Some(target["expr"].as_str()?.to_owned()))
        .collect()
}

async fn served_by(world: &World) -> Result<Served> {
    let mut served = Served::new();
    let control = world.fleet.control_planes.iter().map(|plane| plane.http);
    let data = world.fleet.data_planes.iter().map(|plane| plane.admin);
    for addr in control.chain(data) {
        let request = Request::get(format!("http://{addr}/metrics"));
        let answer = send(request.body(Full::<Bytes>::default())?).await?;
        read(std::str::from_utf8(&answer.body)?, &mut served);
    }
    Ok(served)
}

#[tokio::test]
async fn alerts_and_dashboard_use_metrics_that_exist() -> Result<()> {
    let world = World::start().await?;
    // Families without a sample are not served: one request for an answer, one for a refusal.
    for model in ["main", "no-such-model"] {
        chat(world.data_plane(0)?, model).await?;
    }
    let served = served_by(&world).await?;

    let deploy = Path::new(DEPLOY);
    let rules = fs::read_to_string(deploy.join("prometheus/tidegate.rules.yaml"))?;
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(deploy.join("grafana/tidegate.json"))?)?;
    let panels = expressions(&dashboard["panels"]);
    assert!(panels.len() > 20, "{panels:?}");
    let mut used = asked(&rules);
    assert!(used.len() > 10, "{used:?}");
    used.extend(panels.iter().flat_map(|expression| asked(expression)));

    let unknown: Vec<String> = used
        .into_iter()
        .filter_map(|(name, labels)| match served.get(&name) {
            None => Some(name),
            Some(seen) => labels
                .into_iter()
                .find(|label| !seen.contains(label))
                .map(|label| format!("{name}{{{label}}}")),
        })
        .collect();
    assert!(unknown.is_empty(), "no program serves {unknown:?}");
    Ok(())
}

#[test]
fn expressions_are_taken_apart() {
    let found =
        asked(r#"sum(tidegate_dp_a_total{x="1",y!~"2"}) / tidegate_cp_b > my_tidegate_dp_c"#);
    let of = |name: &str, labels: &[&str]| {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        (name.to_owned(), labels)
    };
    assert_eq!(
        found,
        [
            of("tidegate_dp_a_total", &["x", "y"]),
            of("tidegate_cp_b", &[])
        ]
    );
}
