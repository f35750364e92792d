//! The alert rules and the dashboard in `deploy/` ask for what the programs serve, and the table of all metrics tells it.

mod promql;

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
Name, kind and meaning of each are there from the start, before there is a sample, too: most begin at zero, some with the
first event. What the `gen_ai_` ones mean is in [telemetry](telemetry.md), which rules and panels use them in
`deploy/prometheus` and `deploy/grafana`.

<!-- made from what the programs serve; TIDEGATE_UPDATE=1 cargo nextest run -E 'test(metrics_that_exist)' writes it anew -->

| name | kind | meaning |
|---|---|---|
";

/// Labels that Prometheus puts to each sample of a process that it asks.
const OF_PROCESSES: [&str; 2] = ["instance", "job"];

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

fn alerts(rules: &Value) -> Vec<String> {
    let groups = rules["groups"].as_array().into_iter().flatten();
    groups
        .flat_map(|group| group["rules"].as_array().into_iter().flatten())
        .filter_map(|rule| Some(rule["expr"].as_str()?.to_owned()))
        .collect()
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

/// The table is what is served, neither less nor more.
fn check_page(texts: &[String]) -> Result<()> {
    let page = fs::read_to_string(PAGE).unwrap_or_default();
    let rows: BTreeMap<String, String> = texts.iter().flat_map(|text| described(text)).collect();
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
    // Whatever has happened so far: families are served without samples, too.
    check_page(&served_by(&world).await?)?;
    // Labels are in samples only: one request for an answer, one for a refusal.
    for model in ["main", "no-such-model"] {
        chat(world.data_plane(0)?, model).await?;
    }
    // One of them is a stream.
    let stream = r#"{"model":"main","stream":true,"messages":[]}"#;
    post(world.data_plane(0)?, "/v1/chat/completions", stream).await?;
    let mut served = Served::new();
    for text in &served_by(&world).await? {
        read(text, &mut served);
    }

    let deploy = Path::new(DEPLOY);
    let rules = fs::read_to_string(deploy.join("prometheus/tidegate.rules.yaml"))?;
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(deploy.join("grafana/tidegate.json"))?)?;
    let alerts = alerts(&serde_saphyr::from_str(&rules)?);
    assert!(alerts.len() > 10, "{alerts:?}");
    let panels = expressions(&dashboard["panels"]);
    assert!(panels.len() > 20, "{panels:?}");
    // Not only the expressions: what an alert says in words names metrics, too.
    let mut used = promql::asked(&rules);
    for expression in alerts.iter().chain(&panels) {
        used.extend(promql::asked(expression));
        used.extend(promql::grouped(expression));
    }

    let is_served = |seen: &BTreeSet<String>, label: &str| {
        seen.contains(label) || OF_PROCESSES.contains(&label)
    };
    let unknown: BTreeSet<String> = used
        .into_iter()
        .filter_map(|(name, labels)| match served.get(&name) {
            None => Some(name),
            Some(seen) => labels
                .into_iter()
                .find(|label| !is_served(seen, label))
                .map(|label| format!("{name}{{{label}}}")),
        })
        .collect();
    assert!(unknown.is_empty(), "no program serves {unknown:?}");
    Ok(())
}
