//! What the process tells of itself.

use anyhow::Result;
use tidegate_integration::{LIMIT, chat};
use tidegate_test_support::{Collector, ProcessBuilder};

use super::Standalone;

#[tokio::test]
async fn a_clean_start_warns_of_nothing_and_both_planes_are_in_one_trace() -> Result<()> {
    let collector = Collector::start().await?;
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "deployment.environment=test".to_owned(),
        ),
    ];
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let arguments = ["--log", "info,tidegate::access=off"];
    let standalone = Standalone::start_as(&env, &arguments, |document| document).await?;
    let log = standalone.process.log()?;
    assert!(log.contains("\"serving\""), "{log}");
    let warned: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("\"WARN\"") || line.contains("\"ERROR\""))
        .collect();
    assert!(warned.is_empty(), "{warned:#?}");

    assert_eq!(chat(standalone.http, "main").await?.status, 200);
    assert!(!standalone.process.log()?.contains("tidegate::access"));
    // What waits is sent at the end.
    standalone.process.terminate(LIMIT).await?;
    let spans = collector.spans();
    let decided = spans.iter().find(|span| span.name.ends_with("/Decide"));
    let request = spans
        .iter()
        .find(|span| span.name == "POST /v1/chat/completions");
    let (Some(decided), Some(request)) = (decided, request) else {
        anyhow::bail!("{spans:?}");
    };
    assert_eq!(decided.trace_id, request.trace_id);
    assert_eq!(
        (decided.service.as_str(), request.service.as_str()),
        ("tidegate", "tidegate")
    );
    assert!(collector.text().contains("deployment.environment"));
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_traced_or_logged_is_refused_before_anything_starts() -> Result<()> {
    for (arguments, named) in [
        (["--otlp-endpoint", "collector:4317"], "--otlp-endpoint"),
        (["--log", "info=loud=very"], "level filter"),
    ] {
        let finished = ProcessBuilder::workspace_binary("tidegate")?
            .args(["run", "--config", "nowhere.yaml"])
            .args(arguments)
            .run(LIMIT)
            .await?;
        assert_eq!(finished.status.code(), Some(64), "{finished:?}");
        assert!(finished.stderr.contains(named), "{finished:?}");
    }
    Ok(())
}
