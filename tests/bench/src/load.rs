//! A closed-loop driver: a fixed number of workers, each sending its next request when the last one ended,
//! for a fixed time.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// What one run measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// Requests that ended well.
    pub(crate) requests: u64,
    /// How long the run took.
    pub(crate) elapsed: Duration,
    /// Duration of each request, ascending.
    pub(crate) latencies: Vec<Duration>,
    /// Time to the first chunk of each request that has chunks, ascending.
    pub(crate) first_chunks: Vec<Duration>,
}

/// What a request measured of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Time to the first chunk, for answers that come in chunks.
    pub(crate) first_chunk: Option<Duration>,
}

impl Run {
    /// Requests a second.
    pub(crate) fn throughput(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// A percentile of the latencies, in ms.
    pub(crate) fn latency_ms(&self, percentile: f64) -> f64 {
        percentile_ms(&self.latencies, percentile)
    }

    /// A percentile of the times to the first chunk, in ms.
    pub(crate) fn first_chunk_ms(&self, percentile: f64) -> f64 {
        percentile_ms(&self.first_chunks, percentile)
    }
}

/// A percentile of some durations, in ms; 0 when there are none.
pub(crate) fn percentile_ms(ascending: &[Duration], percentile: f64) -> f64 {
    let last = ascending.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index between 0 and last"
    )]
    let index = (last as f64 * percentile).round() as usize;
    ascending
        .get(index.min(last))
        .map_or(0.0, |duration| duration.as_secs_f64() * 1_000.0)
}

/// Runs `workers` workers for `time`; `request` is given the number of its worker.
pub(crate) async fn drive<F, Fut>(workers: usize, time: Duration, request: F) -> Result<Run>
where
    F: Fn(usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Sample>> + Send,
{
    let request = Arc::new(request);
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..workers {
        let request = Arc::clone(&request);
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            let mut first_chunks = Vec::new();
            while started.elapsed() < time {
                let sent = Instant::now();
                let sample = request(worker).await?;
                latencies.push(sent.elapsed());
                first_chunks.extend(sample.first_chunk);
            }
            Ok::<_, anyhow::Error>((latencies, first_chunks))
        });
    }
    let mut run = Run::default();
    while let Some(ended) = tasks.join_next().await {
        let (latencies, first_chunks) = ended??;
        run.latencies.extend(latencies);
        run.first_chunks.extend(first_chunks);
    }
    run.elapsed = started.elapsed();
    run.requests = run.latencies.len() as u64;
    ensure!(run.requests > 0, "no request ended");
    run.latencies.sort_unstable();
    run.first_chunks.sort_unstable();
    Ok(run)
}

/// The median of some figures.
pub(crate) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_medians_are_of_what_was_measured() {
        let run = Run {
            latencies: (1..=100).map(Duration::from_millis).collect(),
            ..Run::default()
        };
        assert!((run.latency_ms(0.5) - 51.0).abs() < 1.01);
        assert!((run.latency_ms(0.99) - 99.0).abs() < 1.01);
        assert!(run.first_chunk_ms(0.5).abs() < f64::EPSILON);
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
    }
}
