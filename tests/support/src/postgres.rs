//! A Postgres of the test's own.
//!
//! The data directory is copied from a template that is made once (`initdb` takes a second, the copy a tenth of it).
//! Without [`PostgresOptions::durable`] it runs with `fsync=off`: what was committed survives the death of the
//! server's processes, not that of the machine, which no test kills. The port stays reserved, so the server comes back
//! where it was.

mod binaries;
mod template;
mod wire;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use parking_lot::Mutex;

use crate::account::{self, Account};
use crate::child::{ChildProcess, ChildSpec};
use crate::port::ReservedPort;
use crate::process::ProcessBuilder;
use crate::scratch::ScratchDir;
use crate::wait::eventually;

/// Superuser of the instance; there is no password (`trust`, loopback only).
const USER: &str = "tidegate";
/// How long the server may take to accept connections, also after a crash.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How long one statement of the harness itself may take.
const STATEMENT_LIMIT: Duration = Duration::from_secs(20);
/// How long a dump may take.
const DUMP_LIMIT: Duration = Duration::from_secs(30);
/// How long an immediate shutdown may take when the value is dropped; then it is killed.
const DROP_GRACE: Duration = Duration::from_secs(3);

/// How to start a [`Postgres`].
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// On disk, `fsync` and `full_page_writes` on, as in production: for measurements and for durability.
    pub durable: bool,
    /// Further settings (`-c name=value`), which win over those of the harness.
    pub settings: Vec<(String, String)>,
}

/// A running (or stopped) Postgres with a port and a data directory of its own.
#[derive(Debug)]
pub struct Postgres {
    // Fields are dropped in this order: the server before its files and its port.
    server: Mutex<Option<Arc<ChildProcess>>>,
    port: ReservedPort,
    scratch: ScratchDir,
    account: Option<Account>,
    program: PathBuf,
    options: PostgresOptions,
    next_database: AtomicU32,
}

impl Postgres {
    /// Starts one with the default options and waits until it answers.
    ///
    /// # Errors
    /// When Postgres is not installed or does not start; the text holds the end of its log.
    pub async fn start() -> Result<Self> {
        Self::start_with(PostgresOptions::default()).await
    }

    /// Starts one as `options` say and waits until it answers.
    ///
    /// # Errors
    /// When Postgres is not installed or does not start; the text holds the end of its log.
    pub async fn start_with(options: PostgresOptions) -> Result<Self> {
        let made = tokio::task::spawn_blocking(move || {
            let binaries = binaries::find()?;
            let account = account::for_servers()?;
            let scratch = if options.durable {
                ScratchDir::on_disk("postgres")?
            } else {
                ScratchDir::new("postgres")?
            };
            template::copy_to(
                &binaries,
                account.as_ref(),
                USER,
                &scratch.path().join("data"),
            )?;
            anyhow::Ok(Self {
                server: Mutex::new(None),
                port: ReservedPort::reserve()?,
                scratch,
                account,
                program: binaries.join("postgres"),
                options,
                next_database: AtomicU32::new(1),
            })
        });
        let postgres = made
            .await
            .context("the start of postgres was cancelled")??;
        postgres.start_again().await?;
        Ok(postgres)
    }

    /// Starts it after [`Self::stop`] or [`Self::kill`], on the same port with the same data, and waits until it answers.
    ///
    /// # Errors
    /// When it runs already, or does not start.
    pub async fn start_again(&self) -> Result<()> {
        let server = {
            let mut slot = self.server.lock();
            if slot.is_some() {
                bail!("postgres runs already");
            }
            let server = Arc::new(ChildProcess::start(self.spec())?);
            *slot = Some(Arc::clone(&server));
            server
        };
        let answered = eventually(START_LIMIT, "postgres to accept connections", || async {
            match server.try_exit() {
                Ok(None) => {}
                Ok(Some(status)) => return Some(Err(anyhow::anyhow!("postgres ended: {status}"))),
                Err(error) => return Some(Err(error)),
            }
            let session = wire::Session::open(self.addr(), USER, "postgres");
            tokio::time::timeout(Duration::from_secs(2), session)
                .await
                .ok()?
                .ok()
                .map(Ok)
        });
        let answered = answered.await.and_then(|session| session);
        if answered.is_err() {
            self.server.lock().take();
        }
        answered.map(drop).with_context(|| server.tail())
    }

    /// Fast shutdown: sessions are ended, a checkpoint is written.
    ///
    /// # Errors
    /// When it does not run or does not stop.
    pub async fn stop(&self) -> Result<()> {
        let server = self.take()?;
        server.signal(Signal::SIGINT)?;
        server.wait(STOP_LIMIT).await.map(drop)
    }

    /// Immediate shutdown (`pg_ctl stop --mode immediate`): sessions are ended in the middle of what they do and nothing is
    /// written; the next start recovers from the log.
    ///
    /// # Errors
    /// When it does not run or does not stop.
    pub async fn stop_immediately(&self) -> Result<()> {
        let server = self.take()?;
        server.signal(Signal::SIGQUIT)?;
        server.wait(STOP_LIMIT).await.map(drop)
    }

    /// SIGKILL to the server and its sessions: the next start recovers from the log.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&self) -> Result<()> {
        self.take()?.kill().await
    }

    /// Stops all its processes (SIGSTOP): connections stay and nothing answers.
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

    /// Makes an empty database that nobody else has and gives its URL.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn create_database(&self) -> Result<String> {
        let name = format!(
            "test_{}",
            self.next_database.fetch_add(1, Ordering::Relaxed)
        );
        self.execute("postgres", &format!("CREATE DATABASE {name}"))
            .await?;
        Ok(self.url(&name))
    }

    /// The URL of a database of this server (it need not exist).
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        self.url_through(self.addr(), database)
    }

    /// The same, through another address: that of a [`crate::FaultProxy`].
    #[must_use]
    pub fn url_through(&self, addr: SocketAddr, database: &str) -> String {
        format!("postgres://{USER}@{addr}/{database}?sslmode=disable")
    }

    /// Runs SQL on a session of its own and gives the rows of all its statements as text.
    ///
    /// For looks from outside and for mischief; what is tested uses its own client.
    ///
    /// # Errors
    /// What the server says, or no answer within 20 s.
    pub async fn execute(&self, database: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        let run = async {
            let mut session = wire::Session::open(self.addr(), USER, database).await?;
            session.query(sql).await
        };
        tokio::time::timeout(STATEMENT_LIMIT, run)
            .await
            .with_context(|| format!("no answer to {sql:?}"))?
            .with_context(|| format!("postgres refused {sql:?}"))
    }

    /// All of a database, schema and rows, as `pg_dump` writes it.
    ///
    /// # Errors
    /// When it cannot be dumped.
    pub async fn dump(&self, database: &str) -> Result<String> {
        let program = self.program.with_file_name("pg_dump");
        let dumped = ProcessBuilder::program("pg_dump", program)
            .arg(self.url(database))
            .run(DUMP_LIMIT)
            .await?;
        if !dumped.status.success() {
            bail!("pg_dump: {}", dumped.stderr);
        }
        Ok(dumped.stdout)
    }

    /// Where its data, the log of its transactions and its own log lie.
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

    fn spec(&self) -> ChildSpec {
        let fsync = if self.options.durable { "on" } else { "off" };
        let port = self.port.number().to_string();
        let ours = [
            ("listen_addresses", "127.0.0.1"),
            ("port", port.as_str()),
            // Paths of sockets are limited to 107 bytes, temporary directories are not.
            ("unix_socket_directories", ""),
            ("fsync", fsync),
            ("full_page_writes", fsync),
            ("shared_buffers", "32MB"),
            ("max_connections", "200"),
            ("log_min_messages", "warning"),
            ("timezone", "UTC"),
        ];
        let ours = ours
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"));
        let theirs = self
            .options
            .settings
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let mut args = vec![
            OsString::from("-D"),
            self.scratch.path().join("data").into(),
        ];
        for setting in ours.chain(theirs) {
            args.push("-c".into());
            args.push(setting.into());
        }
        ChildSpec {
            name: "postgres".to_owned(),
            program: self.program.clone(),
            args,
            env: vec![("LC_ALL".into(), "C".into())],
            work_dir: self.scratch.path().to_owned(),
            log: self.scratch.path().join("postgres.log"),
            output: None,
            user: self.account.as_ref().map(|account| account.name.clone()),
            // Immediate shutdown rather than SIGKILL: it also takes its shared memory away.
            on_our_death: Signal::SIGQUIT,
            on_drop: (Signal::SIGQUIT, DROP_GRACE),
        }
    }

    fn running(&self) -> Result<Arc<ChildProcess>> {
        self.server.lock().clone().context("postgres does not run")
    }

    fn take(&self) -> Result<Arc<ChildProcess>> {
        self.server.lock().take().context("postgres does not run")
    }
}
