//! From flags and environment to settings that can be run. Everything is checked here, before a port opens.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use secrecy::{ExposeSecret as _, SecretString};
use tidegate_control::plane::{
    ApiTls, Certificate, DecisionLimits, Identity, MIN_SILENCE_LIMIT, Retention, ServerTlsConfig,
    Tokens,
};
use tidegate_core::settings::Overrides;
use tidegate_store::seal::{Sealer, SealingKey};
use tidegate_store_redis::{RedisConfig, RedisMode};
use tidegate_telemetry::{TraceSettings, check_filter};

use crate::cli::{Args, DatabaseArgs, HistoryArgs, RedisArgs, RedisKind, SecretArgs, TlsArgs};

/// Longest value of a contract variable that overrides defaults, in bytes.
const MAX_OVERRIDE_BYTES: usize = 64;

/// Settings that can be run.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) grpc_listen: SocketAddr,
    pub(crate) http_listen: SocketAddr,
    pub(crate) api_listen: Option<SocketAddr>,
    pub(crate) database_url: SecretString,
    pub(crate) migrate: bool,
    pub(crate) redis: Option<RedisConfig>,
    pub(crate) sealer: Option<Sealer>,
    pub(crate) tokens: Tokens,
    pub(crate) tls: Option<Tls>,
    pub(crate) replica: String,
    pub(crate) ready_file: Option<PathBuf>,
    pub(crate) grace: Duration,
    pub(crate) decision_limits: DecisionLimits,
    pub(crate) silence_limit: Duration,
    pub(crate) retention: Retention,
    pub(crate) start_limit: Duration,
    pub(crate) log: String,
    pub(crate) traces: Option<TraceSettings>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) validate_only: bool,
}

/// The same certificates for both listeners.
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) grpc: ServerTlsConfig,
    pub(crate) api: ApiTls,
}

/// Nobody waits longer for a decision.
const MAX_DECISION_LIMIT: Duration = Duration::from_secs(10);
/// How long a data plane may be silent. They speak every 10 s, and their calls may take a while.
const SILENCE_LIMITS: RangeInclusive<Duration> = MIN_SILENCE_LIMIT..=Duration::from_secs(3_600);
/// History is kept for as long as this, or for ever: what is repeated later would count again.
const MIN_RETENTION: Duration = Duration::from_secs(86_400);

impl Settings {
    /// Makes sense of flags and environment.
    pub(crate) fn read(
        args: Args,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self> {
        let Args {
            command,
            grpc_listen,
            http_listen,
            api_listen,
            database,
            redis,
            secrets,
            tls,
            name,
            ready_file,
            grace,
            decision_limit,
            decision_store_limit,
            history,
            start_limit,
            otlp,
            log,
            validate,
        } = args;
        let serves = command != Some(crate::cli::Command::Migrate);
        let DatabaseArgs {
            database_url,
            database_url_file,
            no_migrate,
        } = database;
        let database_url = secret("TIDEGATE_DATABASE_URL", database_url, database_url_file)?
            .context("TIDEGATE_DATABASE_URL is not set")?;
        let scheme = database_url.expose_secret().split(':').next();
        ensure!(
            matches!(scheme, Some("postgres" | "postgresql")),
            "TIDEGATE_DATABASE_URL must begin with postgres:// (the standalone binary has a database of its own)"
        );
        for (flag, limit) in [
            ("--decision-limit", decision_limit),
            ("--decision-store-limit", decision_store_limit),
        ] {
            ensure!(!limit.is_zero(), "{flag} must not be 0");
            ensure!(limit <= MAX_DECISION_LIMIT, "{flag} must not exceed 10 s");
        }
        ensure!(
            decision_store_limit <= decision_limit,
            "--decision-store-limit must not exceed --decision-limit"
        );
        let (sealer, tokens) = trust(secrets, serves)?;
        if serves {
            check_open(grpc_listen, &tokens)?;
        }
        let (silence_limit, retention) = history_limits(&history)?;
        check_filter(&log).context("TIDEGATE_LOG is not a filter")?;
        Ok(Self {
            grpc_listen,
            http_listen,
            api_listen,
            database_url,
            migrate: !no_migrate,
            redis: redis_config(redis, serves)?,
            sealer,
            tokens,
            tls: tls_config(&tls)?,
            replica: name.unwrap_or_else(|| format!("control-plane-{}", uuid::Uuid::now_v7())),
            ready_file,
            grace,
            decision_limits: DecisionLimits {
                decide: decision_limit,
                store_call: decision_store_limit,
            },
            silence_limit,
            retention,
            start_limit,
            log,
            traces: TraceSettings::from_environment(&otlp)?,
            environment: overrides(environment),
            validate_only: validate,
        })
    }
}

fn history_limits(args: &HistoryArgs) -> Result<(Duration, Retention)> {
    let HistoryArgs {
        keep_usage,
        keep_transitions,
        keep_audit,
        silence_limit,
    } = args;
    ensure!(
        SILENCE_LIMITS.contains(silence_limit),
        "--silence-limit must be from 15s to 1h: data planes are heard every 10s"
    );
    let keep = |flag: &str, keep: Duration| {
        if keep.is_zero() {
            return Ok(None);
        }
        ensure!(
            keep >= MIN_RETENTION,
            "{flag} must be 0s, which is for ever, or at least a day"
        );
        Ok(Some(keep))
    };
    let retention = Retention {
        usage: keep("--keep-usage", *keep_usage)?,
        transitions: keep("--keep-transitions", *keep_transitions)?,
        audit: keep("--keep-audit", *keep_audit)?,
    };
    Ok((*silence_limit, retention))
}

fn trust(args: SecretArgs, serves: bool) -> Result<(Option<Sealer>, Tokens)> {
    let SecretArgs {
        sealing_key,
        sealing_key_file,
        data_plane_token,
        data_plane_token_file,
        admin_token,
        admin_token_file,
        admin_read_token,
        admin_read_token_file,
    } = args;
    let sealer = match secret("TIDEGATE_SEALING_KEY", sealing_key, sealing_key_file)? {
        Some(text) => {
            let key = SealingKey::parse(&text).context("TIDEGATE_SEALING_KEY")?;
            Some(Sealer::new(&key).context("TIDEGATE_SEALING_KEY")?)
        }
        None if serves => {
            bail!("TIDEGATE_SEALING_KEY is not set; make one with `openssl rand -hex 32`")
        }
        None => None,
    };
    let tokens = Tokens {
        data_plane: secret(
            "TIDEGATE_DATA_PLANE_TOKEN",
            data_plane_token,
            data_plane_token_file,
        )?,
        admin: secret("TIDEGATE_ADMIN_TOKEN", admin_token, admin_token_file)?,
        reader: secret(
            "TIDEGATE_ADMIN_READ_TOKEN",
            admin_read_token,
            admin_read_token_file,
        )?,
    };
    ensure!(
        tokens.reader.is_none() || tokens.admin.is_some(),
        "TIDEGATE_ADMIN_READ_TOKEN is set, TIDEGATE_ADMIN_TOKEN is not: nobody could change anything"
    );
    tokens.check()?;
    Ok((sealer, tokens))
}

/// The same rule the listener keeps, told before anything is started.
fn check_open(listen: SocketAddr, tokens: &Tokens) -> Result<()> {
    let open = tokens.data_plane.is_none() || tokens.admin.is_none();
    ensure!(
        !open || listen.ip().is_loopback(),
        "{listen} is not a loopback address: set TIDEGATE_DATA_PLANE_TOKEN and TIDEGATE_ADMIN_TOKEN"
    );
    Ok(())
}

fn redis_config(args: RedisArgs, serves: bool) -> Result<Option<RedisConfig>> {
    let RedisArgs {
        redis_url,
        redis_url_file,
        redis_mode,
        redis_service,
        redis_node_url,
    } = args;
    let Some(urls) = secret("TIDEGATE_REDIS_URL", redis_url, redis_url_file)? else {
        ensure!(!serves, "TIDEGATE_REDIS_URL is not set");
        return Ok(None);
    };
    let urls: Vec<String> = urls
        .expose_secret()
        .split(',')
        .map(|url| url.trim().to_owned())
        .collect();
    let first = urls.first().cloned().unwrap_or_default();
    ensure!(
        redis_mode != RedisKind::Single || urls.len() == 1,
        "TIDEGATE_REDIS_URL names several servers, but TIDEGATE_REDIS_MODE is single"
    );
    let mode = match redis_mode {
        RedisKind::Single => RedisMode::Single,
        RedisKind::Cluster => RedisMode::Cluster,
        RedisKind::Sentinel => RedisMode::Sentinel {
            service: redis_service,
            node_url: redis_node_url.map(|url| url.expose_secret().to_owned()),
        },
    };
    Ok(Some(RedisConfig {
        mode,
        urls,
        ..RedisConfig::single(first)
    }))
}

fn tls_config(args: &TlsArgs) -> Result<Option<Tls>> {
    let TlsArgs {
        tls_cert_file,
        tls_key_file,
        tls_client_ca_file,
    } = args;
    let (cert, key) = match (tls_cert_file, tls_key_file) {
        (Some(cert), Some(key)) => (pem(cert)?, pem(key)?),
        (None, None) => {
            ensure!(
                tls_client_ca_file.is_none(),
                "TIDEGATE_TLS_CLIENT_CA_FILE needs a certificate and key of our own"
            );
            return Ok(None);
        }
        (Some(_), None) => bail!("TIDEGATE_TLS_CERT_FILE is set, TIDEGATE_TLS_KEY_FILE is not"),
        (None, Some(_)) => bail!("TIDEGATE_TLS_KEY_FILE is set, TIDEGATE_TLS_CERT_FILE is not"),
    };
    let client_ca = tls_client_ca_file.as_deref().map(pem).transpose()?;
    let api = ApiTls::from_pem(&cert, &key, client_ca.as_deref())
        .context("TLS cannot be set up with TIDEGATE_TLS_CERT_FILE and what belongs to it")?;
    let mut grpc = ServerTlsConfig::new().identity(Identity::from_pem(cert, key));
    if let Some(ca) = client_ca {
        grpc = grpc.client_ca_root(Certificate::from_pem(ca));
    }
    Ok(Some(Tls { grpc, api }))
}

fn pem(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A secret given itself or as a file; surrounding white space is cut off.
fn secret(
    name: &str,
    value: Option<SecretString>,
    file: Option<PathBuf>,
) -> Result<Option<SecretString>> {
    let text = match (value, file) {
        (Some(_), Some(_)) => bail!("{name} and {name}_FILE are both set"),
        (Some(value), None) => value,
        (None, Some(file)) => {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("cannot read {name}_FILE {}", file.display()))?;
            SecretString::from(text)
        }
        (None, None) => return Ok(None),
    };
    let trimmed = text.expose_secret().trim();
    ensure!(!trimmed.is_empty(), "{name} is empty");
    Ok(Some(SecretString::from(trimmed)))
}

/// The contract variables that act, as they are sent to data planes. Others may hold secrets.
fn overrides(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> BTreeMap<String, String> {
    environment
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, value)| Overrides::reads(name) && value.len() <= MAX_OVERRIDE_BYTES)
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    fn read(args: &[&str]) -> Result<Settings> {
        let args = std::iter::once("x").chain(args.iter().copied());
        Settings::read(Args::try_parse_from(args).unwrap(), Vec::new())
    }

    fn good() -> Vec<&'static str> {
        vec![
            "--database-url",
            "postgres://h/d",
            "--redis-url",
            "redis://h",
            "--sealing-key",
            KEY,
        ]
    }

    #[test]
    fn what_is_needed_is_asked_for_by_name() {
        assert!(read(&good()).is_ok());
        for (missing, name) in [(0, "DATABASE_URL"), (2, "REDIS_URL"), (4, "SEALING_KEY")] {
            let mut args = good();
            args.drain(missing..missing + 2);
            let error = format!("{:#}", read(&args).unwrap_err());
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn open_listener_on_the_network_is_refused() {
        let mut args = good();
        args.extend(["--grpc-listen", "0.0.0.0:7400", "--admin-token", "t"]);
        let error = format!("{:#}", read(&args).unwrap_err());
        assert!(error.contains("loopback"), "{error}");
        let mut same = args.clone();
        same.extend(["--data-plane-token", "t"]);
        let error = format!("{:#}", read(&same).unwrap_err());
        assert!(error.contains("the same"), "{error}");
        args.extend(["--data-plane-token", "p"]);
        assert!(read(&args).is_ok());
    }

    #[test]
    fn a_token_to_look_with_needs_one_to_manage_with() {
        let mut args = good();
        args.extend(["--admin-read-token", "look"]);
        let error = format!("{:#}", read(&args).unwrap_err());
        assert!(error.contains("TIDEGATE_ADMIN_TOKEN"), "{error}");
        args.extend(["--admin-token", "manage"]);
        let tokens = read(&args).unwrap().tokens;
        assert!(tokens.reader.is_some() && tokens.admin.is_some());
    }

    #[test]
    fn migration_needs_the_database_only() {
        assert!(read(&["migrate", "--database-url", "postgres://h/d"]).is_ok());
    }

    #[test]
    fn history_is_kept_for_a_day_or_more_or_for_ever() {
        let with = |flag: &'static str, value: &'static str| {
            let mut args = good();
            args.extend([flag, value]);
            read(&args).map(|settings| (settings.silence_limit, settings.retention))
        };
        let untold = (Duration::from_secs(60), Retention::default());
        assert_eq!(read(&good()).unwrap().retention, untold.1);
        let (silence_limit, kept) = with("--keep-usage", "0s").unwrap();
        let expected = Retention {
            usage: None,
            ..untold.1
        };
        assert_eq!((silence_limit, kept), (untold.0, expected));
        let (_, kept) = with("--keep-audit", "1day").unwrap();
        assert_eq!(kept.audit, Some(MIN_RETENTION));
        let (silence_limit, _) = with("--silence-limit", "15s").unwrap();
        assert_eq!(silence_limit, Duration::from_secs(15));
        for (flag, value) in [
            ("--keep-usage", "23h"),
            ("--keep-transitions", "1s"),
            ("--keep-audit", "1ms"),
            ("--silence-limit", "14999ms"),
            ("--silence-limit", "2h"),
        ] {
            let error = with(flag, value).unwrap_err().to_string();
            assert!(error.contains(flag), "{error}");
        }
    }

    #[test]
    fn secrets_come_from_files_without_white_space_and_never_show() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        std::fs::write(&file, format!("{KEY}\n")).unwrap();
        let mut args = good();
        args.truncate(4);
        args.extend([
            "--sealing-key-file",
            file.to_str().unwrap(),
            "--admin-token",
            "hush",
        ]);
        let settings = read(&args).unwrap();
        let shown = format!("{settings:?}");
        assert!(!shown.contains("hush") && !shown.contains(KEY), "{shown}");
    }

    #[test]
    fn only_overrides_of_the_contract_are_taken_from_the_environment() {
        let variable = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let found = overrides([
            variable(
                "OMNIROUTE_PROVIDER_BREAKER_OAUTH_DEGRADATION_THRESHOLD",
                "4",
            ),
            variable("RATE_LIMIT_MAX_WAIT_MS", "9000"),
            variable("PROVIDER_COOLDOWN_ENABLED", "on"),
            variable("STREAM_RECOVERY_ENABLED", "true"),
            variable("REQUEST_TIMEOUT_MS", &"9".repeat(65)),
            variable("OMNIROUTE_API_KEY", "secret"),
            variable("PATH", "/bin"),
        ]);
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        let expected = [
            "OMNIROUTE_PROVIDER_BREAKER_OAUTH_DEGRADATION_THRESHOLD",
            "PROVIDER_COOLDOWN_ENABLED",
            "RATE_LIMIT_MAX_WAIT_MS",
            "STREAM_RECOVERY_ENABLED",
        ];
        assert_eq!(names, expected);
    }
}
