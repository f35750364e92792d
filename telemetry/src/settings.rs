//! OpenTelemetry's own settings, by the names that its specification gives them.

use std::fmt;
use std::time::Duration;

use http::Uri;
use opentelemetry_sdk::trace::Sampler;
use secrecy::SecretString;

use crate::sampling::sampler;

/// Where traces go
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OtlpArgs {
    /// Send traces to this OpenTelemetry collector, http://host:4317 or https://host:4317 (OTLP over gRPC); without it,
    /// none are made. The other OTEL_* variables are read as well
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        global = true,
        value_name = "URL"
    )]
    pub otlp_endpoint: Option<String>,
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {text:?}, but must be {expected}")]
pub struct BadSetting {
    name: &'static str,
    text: String,
    expected: String,
}

impl BadSetting {
    pub(crate) fn new(name: &'static str, text: &str, expected: &str) -> Self {
        Self {
            name,
            text: text.to_owned(),
            expected: expected.to_owned(),
        }
    }
}

/// How traces are made and sent.
#[derive(Clone)]
pub struct TraceSettings {
    /// The collector.
    pub(crate) endpoint: Uri,
    /// PEM: who signs its certificate; unset: the roots of the web.
    pub(crate) ca_certificate: Option<Vec<u8>>,
    /// What is shown to it with every call. Values are secrets.
    pub(crate) headers: Vec<(String, SecretString)>,
    pub(crate) gzip: bool,
    /// What one delivery may take, repetitions included.
    pub(crate) export_limit: Duration,
    /// Most spans that wait to be sent.
    pub(crate) max_queued: usize,
    /// Most spans in a message.
    pub(crate) max_batch: usize,
    /// How long spans may wait for company.
    pub(crate) delay: Duration,
    pub(crate) sampler: Sampler,
    /// `service.name`, where the environment gives one.
    pub(crate) service_name: Option<String>,
}

impl fmt::Debug for TraceSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TraceSettings")
            .field("endpoint", &self.endpoint)
            .field("sampler", &self.sampler)
            .finish_non_exhaustive()
    }
}

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// Longest time for a delivery that is believed.
const MAX_LIMIT_MS: u64 = 60_000;
/// Most spans that may wait, about 1 KiB each.
const MAX_QUEUE: u64 = 65_536;

impl TraceSettings {
    /// Reads flags and variables; `None` when no traces are wanted.
    ///
    /// # Errors
    /// When a variable says what cannot be done.
    pub fn read(
        args: &OtlpArgs,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, BadSetting> {
        let variables = Variables(&|name| variable(name).filter(|value| !value.is_empty()));
        let of_flag = args.otlp_endpoint.clone().filter(|url| !url.is_empty());
        let said = match variables.get(TRACES_ENDPOINT) {
            Some(url) => Some((TRACES_ENDPOINT, url)),
            None => of_flag.map(|url| (ENDPOINT, url)),
        };
        let is_off = variables.get("OTEL_SDK_DISABLED").as_deref() == Some("true")
            || variables.get("OTEL_TRACES_EXPORTER").as_deref() == Some("none");
        let Some((name, url)) = said.filter(|_| !is_off) else {
            return Ok(None);
        };
        variables.one_of("PROTOCOL", &["grpc"])?;
        let compression = variables.one_of("COMPRESSION", &["none", "gzip"])?;
        let max_queued = variables.number("OTEL_BSP_MAX_QUEUE_SIZE", 2_048, 1..=MAX_QUEUE)?;
        let max_batch = variables.number(
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
            max_queued.min(512),
            1..=max_queued,
        )?;
        let delay = variables.number("OTEL_BSP_SCHEDULE_DELAY", 5_000, 1..=MAX_LIMIT_MS)?;
        let limit = variables.number("OTEL_EXPORTER_OTLP_TIMEOUT", 10_000, 1..=MAX_LIMIT_MS)?;
        let ca_certificate = match variables.of_traces("CERTIFICATE") {
            Some((name, path)) => Some(std::fs::read(&path).map_err(|error| {
                BadSetting::new(name, &path, &format!("a file that can be read: {error}"))
            })?),
            None => None,
        };
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Some(Self {
            endpoint: endpoint(name, &url)?,
            ca_certificate,
            headers: match variables.of_traces("HEADERS") {
                Some((name, text)) => headers(name, &text)?,
                None => Vec::new(),
            },
            gzip: compression.as_deref() == Some("gzip"),
            export_limit: Duration::from_millis(limit),
            max_queued: count(max_queued),
            max_batch: count(max_batch),
            delay: Duration::from_millis(delay),
            sampler: sampler(
                variables.get("OTEL_TRACES_SAMPLER").as_deref(),
                variables.get("OTEL_TRACES_SAMPLER_ARG").as_deref(),
            )?,
            service_name: variables.get("OTEL_SERVICE_NAME"),
        }))
    }

    /// What [`TraceSettings::read`] reads, from the environment of the process.
    ///
    /// # Errors
    /// As there.
    pub fn from_environment(args: &OtlpArgs) -> Result<Option<Self>, BadSetting> {
        Self::read(args, |name| std::env::var(name).ok())
    }
}

struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name)
    }

    /// A setting of the exporter, where that for traces goes before that for everything.
    fn of_traces(&self, what: &str) -> Option<(&'static str, String)> {
        let (traces, all) = match what {
            "CERTIFICATE" => (
                "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
                "OTEL_EXPORTER_OTLP_CERTIFICATE",
            ),
            "HEADERS" => (
                "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
                "OTEL_EXPORTER_OTLP_HEADERS",
            ),
            "PROTOCOL" => (
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
                "OTEL_EXPORTER_OTLP_PROTOCOL",
            ),
            _ => (
                "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
                "OTEL_EXPORTER_OTLP_COMPRESSION",
            ),
        };
        let get = |name: &'static str| self.get(name).map(|value| (name, value));
        get(traces).or_else(|| get(all))
    }

    fn one_of(&self, what: &str, known: &[&str]) -> Result<Option<String>, BadSetting> {
        match self.of_traces(what) {
            Some((name, value)) if !known.contains(&value.as_str()) => {
                Err(BadSetting::new(name, &value, &known.join(" or ")))
            }
            said => Ok(said.map(|(_, value)| value)),
        }
    }

    fn number(
        &self,
        name: &'static str,
        default: u64,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, BadSetting> {
        let Some(text) = self.get(name) else {
            return Ok(default);
        };
        let number: Option<u64> = text.trim().parse().ok();
        number.filter(|it| range.contains(it)).ok_or_else(|| {
            let expected = format!("a number from {} to {}", range.start(), range.end());
            BadSetting::new(name, &text, &expected)
        })
    }
}

fn endpoint(name: &'static str, text: &str) -> Result<Uri, BadSetting> {
    let bad = || {
        BadSetting::new(
            name,
            text,
            "of the form http://host:port or https://host:port",
        )
    };
    let uri: Uri = text.trim().parse().map_err(|_| bad())?;
    let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    (is_known && has_host).then_some(uri).ok_or_else(bad)
}

/// `name=value,name=value`, where values may be percent-encoded.
fn headers(name: &'static str, text: &str) -> Result<Vec<(String, SecretString)>, BadSetting> {
    // The text may be a secret and is not shown.
    let bad = || BadSetting::new(name, "...", "pairs of name=value, separated by commas");
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').ok_or_else(bad)?;
            let name = name.trim().to_ascii_lowercase();
            let value = percent_decoded(value.trim()).ok_or_else(bad)?;
            http::HeaderName::try_from(&name).map_err(|_| bad())?;
            http::HeaderValue::try_from(&value).map_err(|_| bad())?;
            Ok((name, SecretString::from(value)))
        })
        .collect()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
            decoded.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use secrecy::ExposeSecret as _;

    use super::*;

    fn read(flag: Option<&str>, set: &[(&str, &str)]) -> Result<Option<TraceSettings>, BadSetting> {
        let args = OtlpArgs {
            otlp_endpoint: flag.map(str::to_owned),
        };
        TraceSettings::read(&args, |name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const URL: Option<&str> = Some("http://collector:4317");

    #[rstest]
    #[case::no_endpoint(None, &[])]
    #[case::empty(Some(""), &[])]
    #[case::disabled(URL, &[("OTEL_SDK_DISABLED", "true")])]
    #[case::no_exporter(URL, &[("OTEL_TRACES_EXPORTER", "none")])]
    fn nothing_is_made_unless_asked_for(#[case] flag: Option<&str>, #[case] set: &[(&str, &str)]) {
        assert!(read(flag, set).unwrap().is_none());
    }

    #[test]
    fn defaults_are_those_of_the_specification() {
        let settings = read(URL, &[]).unwrap().unwrap();
        assert_eq!(settings.max_queued, 2_048);
        assert_eq!(settings.max_batch, 512);
        assert_eq!(settings.delay, Duration::from_secs(5));
        assert_eq!(settings.export_limit, Duration::from_secs(10));
        assert!(!settings.gzip);
    }

    #[test]
    fn settings_for_traces_go_before_those_for_everything() {
        let set = [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces:4317"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=everything"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "Key=a%20b, other=1"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
        ];
        let settings = read(URL, &set).unwrap().unwrap();
        assert_eq!(settings.endpoint.host(), Some("traces"));
        let shown: Vec<_> = settings
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose_secret()))
            .collect();
        assert_eq!(shown, [("key", "a b"), ("other", "1")]);
        assert!(settings.gzip);
        assert_eq!(settings.max_batch, 100);
    }

    #[rstest]
    #[case::no_url(Some("collector:4317"), &[], ENDPOINT)]
    #[case::other_scheme(Some("grpc://collector"), &[], ENDPOINT)]
    #[case::protocol(URL, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], "OTEL_EXPORTER_OTLP_PROTOCOL")]
    #[case::compression(URL, &[("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd")], "OTEL_EXPORTER_OTLP_COMPRESSION")]
    #[case::queue(URL, &[("OTEL_BSP_MAX_QUEUE_SIZE", "0")], "OTEL_BSP_MAX_QUEUE_SIZE")]
    #[case::large_queue(URL, &[("OTEL_BSP_MAX_QUEUE_SIZE", "65537")], "OTEL_BSP_MAX_QUEUE_SIZE")]
    #[case::batch(URL, &[("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096")], "OTEL_BSP_MAX_EXPORT_BATCH_SIZE")]
    #[case::limit(URL, &[("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")], "OTEL_EXPORTER_OTLP_TIMEOUT")]
    #[case::certificate(URL, &[("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem")], "OTEL_EXPORTER_OTLP_CERTIFICATE")]
    #[case::headers(URL, &[("OTEL_EXPORTER_OTLP_HEADERS", "hush-hush")], "OTEL_EXPORTER_OTLP_HEADERS")]
    #[case::header_value(URL, &[("OTEL_EXPORTER_OTLP_HEADERS", "a=hush%0a")], "OTEL_EXPORTER_OTLP_HEADERS")]
    fn what_cannot_be_done_is_refused(
        #[case] flag: Option<&str>,
        #[case] set: &[(&str, &str)],
        #[case] name: &str,
    ) {
        let error = read(flag, set).unwrap_err();
        assert_eq!(error.name, name);
        assert!(!error.to_string().contains("hush"), "{error}");
    }
}
