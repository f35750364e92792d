//! A Redis of the test's own.
//!
//! Without [`RedisOptions::append_only`] nothing is on disk, so a restart is the loss of all memory; with it, each
//! write is on disk before its answer and a restart brings everything back (under a new run id either way). The port
//! stays reserved, so the server comes back where it was.

mod resp;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sys::signal::Signal;
use parking_lot::Mutex;

use crate::child::{ChildProcess, ChildSpec};
use crate::port::ReservedPort;
use crate::scratch::ScratchDir;
use crate::wait::eventually;

pub use resp::RespValue;

/// How long the server may take to answer, also when it loads data.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// How long one command of the harness itself may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// How to start a [`Redis`].
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    /// Every write is on disk before its answer (`appendonly yes`, `appendfsync always`).
    pub append_only: bool,
    /// Cluster mode: this server alone is a cluster that owns every slot.
    pub cluster: bool,
    /// Further arguments, such as `["--replicaof", "127.0.0.1 7000"]`; they win over those of the harness.
    pub args: Vec<String>,
}

/// A running (or stopped) Redis with a port and a directory of its own.
#[derive(Debug)]
pub struct Redis {
    // Fields are dropped in this order: the server before its files and its ports.
    server: Mutex<Option<Arc<ChildProcess>>>,
    port: ReservedPort,
    bus: Option<ReservedPort>,
    scratch: ScratchDir,
    options: RedisOptions,
}

impl Redis {
    /// Starts one with the default options and waits until it answers.
    ///
    /// # Errors
    /// When Redis is not installed or does not start; the text holds the end of its log.
    pub async fn start() -> Result<Self> {
        Self::start_with(RedisOptions::default()).await
    }

    /// Starts one as `options` say and waits until it answers.
    ///
    /// # Errors
    /// When Redis is not installed or does not start; the text holds the end of its log.
    pub async fn start_with(options: RedisOptions) -> Result<Self> {
        let redis = Self {
            server: Mutex::new(None),
            port: ReservedPort::reserve()?,
            bus: options.cluster.then(ReservedPort::reserve).transpose()?,
            scratch: ScratchDir::new("redis")?,
            options,
        };
        redis.launch().await?;
        if redis.options.cluster {
            redis
                .command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
                .await?;
        }
        redis.until_cluster_is_complete().await?;
        Ok(redis)
    }

    /// Starts it after [`Self::stop`] or [`Self::kill`], on the same port with the same directory, and waits until it
    /// answers.
    ///
    /// # Errors
    /// When it runs already, or does not start.
    pub async fn start_again(&self) -> Result<()> {
        self.launch().await?;
        self.until_cluster_is_complete().await
    }

    async fn launch(&self) -> Result<()> {
        let server = {
            let mut slot = self.server.lock();
            if slot.is_some() {
                bail!("redis runs already");
            }
            let server = Arc::new(ChildProcess::start(self.spec())?);
            *slot = Some(Arc::clone(&server));
            server
        };
        let answered = eventually(START_LIMIT, "redis to answer", || async {
            match server.try_exit() {
                Ok(None) => {}
                Ok(Some(status)) => return Some(Err(anyhow!("redis ended: {status}"))),
                Err(error) => return Some(Err(error)),
            }
            // While it loads, it answers with an error.
            self.command(&["PING"]).await.ok().map(|_| Ok(()))
        });
        let answered = answered.await.and_then(|result| result);
        if answered.is_err() {
            self.server.lock().take();
        }
        answered.with_context(|| server.tail())
    }

    /// Orderly stop (SIGTERM).
    ///
    /// # Errors
    /// When it does not run or does not stop.
    pub async fn stop(&self) -> Result<()> {
        let server = self.take()?;
        server.signal(Signal::SIGTERM)?;
        server.wait(STOP_LIMIT).await.map(drop)
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&self) -> Result<()> {
        self.take()?.kill().await
    }

    /// Stops it (SIGSTOP): connections stay and nothing answers.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> Result<()> {
        self.running()?.pause()
    }

    /// Undoes [`Self::pause`].
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> Result<()> {
        self.running()?.resume()
    }

    /// Empties it.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn flush_all(&self) -> Result<()> {
        self.command(&["FLUSHALL"]).await.map(drop)
    }

    /// Runs a command on a connection of its own, for looks from outside and for mischief.
    ///
    /// # Errors
    /// What the server says, or no answer within 10 s.
    pub async fn command(&self, words: &[&str]) -> Result<RespValue> {
        let name = words.first().copied().unwrap_or_default();
        let answer = tokio::time::timeout(COMMAND_LIMIT, resp::call(self.addr(), words))
            .await
            .with_context(|| format!("redis does not answer {name}"))??;
        match answer {
            RespValue::Error(text) => bail!("redis refused {name}: {text}"),
            other => Ok(other),
        }
    }

    /// The URL of database 0.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_through(self.addr())
    }

    /// The same, through another address: that of a [`crate::FaultProxy`].
    #[must_use]
    pub fn url_through(&self, addr: SocketAddr) -> String {
        format!("redis://{addr}/")
    }

    /// Where its log and, with [`RedisOptions::append_only`], all that was ever written to it lie.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The end of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.server
            .lock()
            .as_ref()
            .map_or_else(String::new, |server| server.tail())
    }

    async fn until_cluster_is_complete(&self) -> Result<()> {
        if !self.options.cluster {
            return Ok(());
        }
        eventually(START_LIMIT, "the cluster to be complete", || async {
            let info = self.command(&["CLUSTER", "INFO"]).await.ok()?;
            info.as_text()?.contains("cluster_state:ok").then_some(())
        })
        .await
    }

    fn spec(&self) -> ChildSpec {
        let append_only = if self.options.append_only {
            "yes"
        } else {
            "no"
        };
        let mut args: Vec<OsString> = Vec::new();
        let mut set = |name: &str, value: OsString| {
            args.push(format!("--{name}").into());
            args.push(value);
        };
        set("bind", "127.0.0.1".into());
        set("port", self.port.number().to_string().into());
        set("dir", self.scratch.path().into());
        set("daemonize", "no".into());
        // No snapshots: what survives is said by `append_only` alone.
        set("save", "".into());
        set("appendonly", append_only.into());
        set("appendfsync", "always".into());
        set("enable-debug-command", "local".into());
        if let Some(bus) = &self.bus {
            set("cluster-enabled", "yes".into());
            set("cluster-port", bus.number().to_string().into());
        }
        args.extend(self.options.args.iter().map(OsString::from));
        ChildSpec {
            name: "redis".to_owned(),
            program: PathBuf::from("redis-server"),
            args,
            env: Vec::new(),
            work_dir: self.scratch.path().to_owned(),
            log: self.scratch.path().join("redis.log"),
            output: None,
            user: None,
            on_our_death: Signal::SIGKILL,
            on_drop: (Signal::SIGKILL, Duration::from_secs(5)),
        }
    }

    fn running(&self) -> Result<Arc<ChildProcess>> {
        self.server.lock().clone().context("redis does not run")
    }

    fn take(&self) -> Result<Arc<ChildProcess>> {
        self.server.lock().take().context("redis does not run")
    }
}
