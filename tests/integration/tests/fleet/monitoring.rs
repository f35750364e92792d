//! The alert rules and the dashboard in `deploy/` ask for what the programs serve.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tidegate_integration::{World, chat, post, send};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
/// Beginnings of the names of all metrics.
const OURS: [&str; 4] = [
    "tidegate_cp_",
    "tidegate_dp_",
    "gen_ai_client_",
    "gen_ai_server_",
];
/// The page with the table of all metrics.
const PAGE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/operations/metrics.md"
);
/// Set, it is written anew.
const UPDATE: &str = "TIDEGATE_UPDATE";
/// What is above the table.
const HEAD: &str = "# Metrics

What `/metrics` of control planes (`tidegate_cp_`) and data planes (`tidegate_dp_`, `gen_ai_`) shows; `tidegate` shows both.
Families without a sample are not shown: most begin at zero, some with the first event. What the `gen_ai_` ones mean is in
[telemetry](telemetry.md), which rules and panels use them in `deploy/prometheus` and `deploy/grafana`.

<!-- made from what the programs serve; TIDEGATE_UPDATE=1 cargo nextest run -E 'test(metrics_that_exist)' writes it anew -->

| name | kind | meaning |
|---|---|---|
";

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
    let ours = |name: &str| OURS.iter().any(|prefix| name.starts_with(prefix));
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
    let patterns = text.split("__name__=~\"").skip(1);
    let names = patterns.flat_map(|rest| alternatives(rest.split('"').next().unwrap_or_default()));
    found.extend(names.map(|name| (name, Vec::new())));
    found
}

/// The names that a pattern such as `a_(b|c)_d` stands for.
fn alternatives(pattern: &str) -> Vec<String> {
    let parts = pattern
        .split_once('(')
        .and_then(|(before, rest)| Some((before, rest.split_once(')')?)));
    let Some((before, (words, behind))) = parts else {
        return vec![pattern.to_owned()];
    };
    words
        .split('|')
        .flat_map(|word| alternatives(&format!("{before}{word}{behind}")))
        .collect()
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

/// Rows of the table: names with what is told of them.
fn described(text: &str) -> BTreeMap<String, String> {
    let mut kinds = BTreeMap::new();
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        let Some((what, (name, told))) = line
            .strip_prefix("# ")
            .and_then(|line| line.split_once(' '))
            .and_then(|(what, rest)| Some((what, rest.split_once(' ')?)))
        else {
            continue;
        };
        match what {
            "HELP" => {
                rows.insert(name.to_owned(), told.trim_end_matches('.').to_owned());
            }
            "TYPE" => {
                kinds.insert(name.to_owned(), told.to_owned());
            }
            _ => {}
        }
    }
    rows.into_iter()
        .map(|(name, told)| {
            let kind = kinds.get(&name).map_or("", String::as_str);
            let shown = match kind {
                "counter" => format!("{name}_total"),
                _ => name,
            };
            let row = format!("| `{shown}` | {kind} | {told} |");
            (shown, row)
        })
        .collect()
}

/// Each metric that is served is in the table, as it is served. The table may have more: what is served depends on what
/// happened.
fn check_page(texts: &[String]) -> Result<()> {
    let page = fs::read_to_string(PAGE).unwrap_or_default();
    let mut rows: BTreeMap<String, String> = page
        .lines()
        .filter_map(|row| {
            let name = row.strip_prefix("| `")?.split('`').next()?;
            Some((name.to_owned(), row.to_owned()))
        })
        .collect();
    for text in texts {
        rows.extend(described(text));
    }
    let table: Vec<String> = rows.into_values().collect();
    let written = format!("{HEAD}{}\n", table.join("\n"));
    if std::env::var_os(UPDATE).is_some() {
        fs::write(PAGE, &written)?;
    } else {
        assert!(page == written, "{PAGE} is not what is served: see there");
    }
    Ok(())
}

async fn served_by(world: &World) -> Result<Vec<String>> {
    let mut served = Vec::new();
    let control = world.fleet.control_planes.iter().map(|plane| plane.http);
    let data = world.fleet.data_planes.iter().map(|plane| plane.admin);
    for addr in control.chain(data) {
        let request = Request::get(format!("http://{addr}/metrics"));
        let answer = send(request.body(Full::<Bytes>::default())?).await?;
        served.push(String::from_utf8(answer.body.to_vec())?);
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
    // One of them is a stream.
    let stream = r#"{"model":"main","stream":true,"messages":[]}"#;
    post(world.data_plane(0)?, "/v1/chat/completions", stream).await?;
    let texts = served_by(&world).await?;
    check_page(&texts)?;
    let mut served = Served::new();
    for text in &texts {
        read(text, &mut served);
    }

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
    assert_eq!(
        asked(r#"sum(increase({__name__=~"tidegate_(dp|cp)_a_total"}[5m]))"#),
        [
            of("tidegate_dp_a_total", &[]),
            of("tidegate_cp_a_total", &[])
        ]
    );
}
