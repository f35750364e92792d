//! OpenTelemetry's own settings, by the names that its specification gives them.

use std::fmt;
use std::time::Duration;

use http::Uri;
use opentelemetry_sdk::trace::Sampler;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::sampling::sampler;

/// Where traces go
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OtlpArgs {
    /// Send traces to this OpenTelemetry collector, http://host:4317 or https://host:4317 (OTLP over gRPC); without it,
    /// none are made. OpenTelemetry's variables (OTEL_EXPORTER_OTLP_ENDPOINT and others) are read as well; this goes before
    #[arg(long, global = true, value_name = "URL")]
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
    /// The collector, with what its certificate is verified by. Its address holds no secret.
    pub(crate) collector: Endpoint,
    /// What is shown to it with every call. Values are secrets.
    pub(crate) headers: MetadataMap,
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
            .field("collector", self.collector.uri())
            .field("sampler", &self.sampler)
            .finish_non_exhaustive()
    }
}

const FLAG: &str = "--otlp-endpoint";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
const TRACES_TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT";
const DISABLED: &str = "OTEL_SDK_DISABLED";
const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
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
        let of_variable = |name| Some((name, variables.get(name)?));
        let said = of_flag
            .map(|url| (FLAG, url))
            .or_else(|| of_variable(TRACES_ENDPOINT))
            .or_else(|| of_variable(ENDPOINT));
        let is_disabled = variables
            .get(DISABLED)
            .is_some_and(|it| it.trim().eq_ignore_ascii_case("true"));
        let Some((name, url)) = said.filter(|_| !is_disabled) else {
            return Ok(None);
        };
        match variables.get(EXPORTER).as_deref() {
            Some("none") => return Ok(None),
            Some("otlp") | None => {}
            Some(other) => return Err(BadSetting::new(EXPORTER, other, "otlp or none")),
        }
        variables.one_of("PROTOCOL", &["grpc"])?;
        let compression = variables.one_of("COMPRESSION", &["none", "gzip"])?;
        let max_queued = variables.number("OTEL_BSP_MAX_QUEUE_SIZE", 2_048, 1..=MAX_QUEUE)?;
        let max_batch = variables.number(
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
            max_queued.min(512),
            1..=max_queued,
        )?;
        let delay = variables.number("OTEL_BSP_SCHEDULE_DELAY", 5_000, 1..=MAX_LIMIT_MS)?;
        let limit = match variables.get(TRACES_TIMEOUT) {
            Some(_) => TRACES_TIMEOUT,
            None => TIMEOUT,
        };
        let limit = variables.number(limit, 10_000, 1..=MAX_LIMIT_MS)?;
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Some(Self {
            collector: collector(address(name, &url)?, variables.of_traces("CERTIFICATE"))?,
            headers: match variables.of_traces("HEADERS") {
                Some((name, text)) => headers(name, &text)?,
                None => MetadataMap::new(),
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

/// What calls would not use (a path, a query, a user) is refused, since whoever wrote it means something by it.
fn address(name: &'static str, text: &str) -> Result<Uri, BadSetting> {
    // A password may be in it: the text is not shown.
    let bad = || {
        let expected =
            "of the form http://host:port or https://host:port, without a user, a path or a query";
        BadSetting::new(name, "...", expected)
    };
    let uri: Uri = text.trim().parse().map_err(|_| bad())?;
    let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_host_and_port = uri.authority().is_some_and(|authority| {
        let (whole, host) = (authority.as_str(), authority.host());
        let has_port = authority.port_u16().is_some();
        !host.is_empty() && !whole.contains('@') && (whole == host || has_port)
    });
    let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
    let is_good = is_known && is_host_and_port && is_bare;
    is_good.then_some(uri).ok_or_else(bad)
}

/// The collector at an address, whose certificate is signed as a file of PEM says, or else by the roots of the web.
fn collector(
    address: Uri,
    signed_by: Option<(&'static str, String)>,
) -> Result<Endpoint, BadSetting> {
    let is_secure = address.scheme_str() == Some("https");
    let mut tls = ClientTlsConfig::new();
    if let Some((name, path)) = signed_by {
        let bad = |why: String| {
            BadSetting::new(name, &path, &format!("a file of PEM certificates: {why}"))
        };
        let pem = std::fs::read(&path).map_err(|error| bad(error.to_string()))?;
        check_certificates(&pem).map_err(bad)?;
        tls = tls.ca_certificate(Certificate::from_pem(pem));
    } else {
        tls = tls.with_webpki_roots();
    }
    let endpoint = Endpoint::from(address);
    if !is_secure {
        return Ok(endpoint);
    }
    endpoint
        .tls_config(tls)
        .map_err(|_| BadSetting::new(ENDPOINT, "...", "https with a name that TLS can verify"))
}

/// Whoever uses them passes over what is no certificate, and then trusts nobody.
fn check_certificates(pem: &[u8]) -> Result<(), String> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        return Err("there is none in it".to_owned());
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// `name=value,name=value`, where values may be percent-encoded.
fn headers(name: &'static str, text: &str) -> Result<MetadataMap, BadSetting> {
    // The text may be a secret and is not shown.
    let bad = || BadSetting::new(name, "...", "pairs of name=value, separated by commas");
    let mut headers = MetadataMap::new();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(bad)?;
        let name = name.trim().to_ascii_lowercase();
        let value = percent_decoded(value.trim())
            .filter(|value| value.is_ascii())
            .ok_or_else(bad)?;
        let name = AsciiMetadataKey::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        let mut value = AsciiMetadataValue::try_from(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
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
    #[case::empty_variable(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")])]
    #[case::disabled(URL, &[("OTEL_SDK_DISABLED", "true")])]
    #[case::disabled_loudly(URL, &[("OTEL_SDK_DISABLED", "TRUE")])]
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
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://everything:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces:4317"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "7"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "8"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=everything"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "Key=a%20b, other=1"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
        ];
        let settings = read(None, &set).unwrap().unwrap();
        assert_eq!(settings.collector.uri().host(), Some("traces"));
        let shown = ["key", "other"].map(|name| settings.headers.get(name).unwrap());
        assert_eq!(shown.map(|it| it.to_str().unwrap()), ["a b", "1"]);
        assert_eq!(settings.headers.len(), 2);
        assert!(shown.iter().all(|it| it.is_sensitive()));
        assert_eq!(settings.export_limit, Duration::from_millis(8));
        assert!(settings.gzip);
        assert_eq!(settings.max_batch, 100);
    }

    #[test]
    fn a_flag_goes_before_every_variable() {
        let set = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://everything:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4317"),
        ];
        let settings = read(URL, &set).unwrap().unwrap();
        assert_eq!(settings.collector.uri().host(), Some("collector"));
        let settings = read(None, &set[..1]).unwrap().unwrap();
        assert_eq!(settings.collector.uri().host(), Some("everything"));
    }

    #[rstest]
    #[case::host("http://collector")]
    #[case::slash("https://collector:4317/")]
    #[case::address("http://[::1]:4317")]
    fn addresses_are_read(#[case] url: &str) {
        assert!(read(Some(url), &[]).unwrap().is_some());
    }

    #[test]
    fn files_without_certificates_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.pem");
        let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for text in ["", "no certificate", bad] {
            std::fs::write(&path, text).unwrap();
            let set = [("OTEL_EXPORTER_OTLP_CERTIFICATE", path.to_str().unwrap())];
            let error = read(Some("https://collector:4317"), &set).unwrap_err();
            assert_eq!(error.name, "OTEL_EXPORTER_OTLP_CERTIFICATE", "{text:?}");
        }
    }

    #[rstest]
    #[case::no_url(Some("collector:4317"), &[], FLAG)]
    #[case::of_the_environment(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")], ENDPOINT)]
    #[case::other_scheme(Some("grpc://collector"), &[], FLAG)]
    #[case::user(Some("http://user:hush@collector:4317"), &[], FLAG)]
    #[case::user_like_the_host(Some("http://collector@collector:4317"), &[], FLAG)]
    #[case::path(Some("http://collector:4317/hush"), &[], FLAG)]
    #[case::query(Some("http://collector:4317?key=hush"), &[], FLAG)]
    #[case::port(Some("http://collector:99999"), &[], FLAG)]
    #[case::exporter(URL, &[("OTEL_TRACES_EXPORTER", "console")], "OTEL_TRACES_EXPORTER")]
    #[case::limit_of_traces(URL, &[("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "soon")], "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")]
    #[case::binary_header(URL, &[("OTEL_EXPORTER_OTLP_HEADERS", "a-bin=hush")], "OTEL_EXPORTER_OTLP_HEADERS")]
    #[case::header_not_ascii(URL, &[("OTEL_EXPORTER_OTLP_HEADERS", "a=hush\u{e4}")], "OTEL_EXPORTER_OTLP_HEADERS")]
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
