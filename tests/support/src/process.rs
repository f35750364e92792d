//! The workspace's own binaries as processes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::child::{ChildProcess, ChildSpec};
use crate::http_probe::http_status;
use crate::scratch::ScratchDir;
use crate::target_dir::bin_dir;
use crate::wait::eventually;

/// One look at a port or a page may take so long.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// How to start a [`Process`].
#[derive(Debug, Clone)]
pub struct ProcessBuilder {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

impl ProcessBuilder {
    /// A binary of this workspace, such as `tidegate-data-plane`: from `TIDEGATE_BIN_DIR`, else beside the test's target.
    ///
    /// # Errors
    /// When it has not been built.
    pub fn workspace_binary(name: &str) -> Result<Self> {
        let program = bin_dir()?.join(name);
        if !program.is_file() {
            bail!(
                "{} does not exist: cargo build --workspace --bins",
                program.display()
            );
        }
        Ok(Self::program(name, program))
    }

    /// Any program; `name` is for messages.
    pub fn program(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Another name for messages, to tell two of the same program apart.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// A variable. Of our own environment the process sees only what every process needs (`PATH`, `RUST_LOG` and few
    /// more), so that a machine's settings change no test.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Adds `--ready-file ready.json`, for [`Process::wait_for_ready_file`].
    #[must_use]
    pub fn with_ready_file(self) -> Self {
        self.args(["--ready-file", READY_FILE])
    }

    /// Starts it, in an empty directory of its own. It need not be ready when this returns.
    ///
    /// # Errors
    /// When it cannot be started at all.
    pub fn start(self) -> Result<Process> {
        let scratch = ScratchDir::new("process")?;
        let child = self.launch(&scratch)?;
        Ok(Process {
            child: Mutex::new(Arc::new(child)),
            builder: self,
            scratch,
        })
    }

    /// Starts it and waits until it ends by itself: for command-line tools.
    ///
    /// # Errors
    /// When it cannot be started, or does not end within `limit`.
    pub async fn run(self, limit: Duration) -> Result<Finished> {
        let process = self.start()?;
        let status = process.wait(limit).await?;
        let read = |file: &str| {
            let bytes = fs::read(process.dir().join(file))?;
            anyhow::Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Finished {
            status,
            stdout: read(STDOUT)?,
            stderr: read(STDERR)?,
        })
    }

    fn launch(&self, scratch: &ScratchDir) -> Result<ChildProcess> {
        // What an earlier process wrote there would pass for this one's.
        match fs::remove_file(scratch.path().join(READY_FILE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        ChildProcess::start(ChildSpec {
            name: self.name.clone(),
            program: self.program.clone(),
            args: self.args.clone(),
            env: self.env.clone(),
            work_dir: scratch.path().to_owned(),
            log: scratch.path().join(STDERR),
            output: Some(scratch.path().join(STDOUT)),
            user: None,
            on_our_death: Signal::SIGKILL,
            on_drop: (Signal::SIGKILL, Duration::from_secs(5)),
        })
    }
}

const READY_FILE: &str = "ready.json";
const STDOUT: &str = "stdout.log";
const STDERR: &str = "stderr.log";

/// How a program ended that ran to its end.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

/// A process of the test. Dropping it kills it; while the test panics, the end of its logs is shown.
#[derive(Debug)]
pub struct Process {
    // Fields are dropped in this order: the process before its files.
    child: Mutex<Arc<ChildProcess>>,
    builder: ProcessBuilder,
    scratch: ScratchDir,
}

impl Process {
    /// Its working directory, which also holds its logs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child().pid()
    }

    /// How it ended, if it did.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn exit_status(&self) -> Result<Option<ExitStatus>> {
        self.child().try_exit()
    }

    /// All it wrote so far, standard output first.
    ///
    /// # Errors
    /// When its logs cannot be read.
    pub fn log(&self) -> Result<String> {
        let mut text = String::new();
        for file in [STDOUT, STDERR] {
            text.push_str(&String::from_utf8_lossy(&fs::read(self.dir().join(file))?));
        }
        Ok(text)
    }

    /// The last 50 lines of its logs.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.child().tail()
    }

    /// Waits until a whole line of its logs contains `needle` and gives the first such line.
    ///
    /// # Errors
    /// When it ends first or the limit passes; the text holds the end of the logs.
    pub async fn wait_for_log(&self, needle: &str, limit: Duration) -> Result<String> {
        self.ready(limit, &format!("{needle:?} in its log"), || async {
            let log = self.log().ok()?;
            let mut lines = log
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            lines
                .find(|line| line.contains(needle))
                .map(|line| line.trim_end().to_owned())
        })
        .await
    }

    /// Waits for a log line that contains `needle` and an address like `127.0.0.1:8080`, and gives the address: for
    /// processes that were told to listen on port 0.
    ///
    /// # Errors
    /// As [`Self::wait_for_log`].
    pub async fn wait_for_addr(&self, needle: &str, limit: Duration) -> Result<SocketAddr> {
        self.ready(
            limit,
            &format!("{needle:?} and an address in its log"),
            || async {
                let log = self.log().ok()?;
                let mut lines = log
                    .split_inclusive('\n')
                    .filter(|line| line.ends_with('\n'));
                lines.find_map(|line| line.contains(needle).then(|| addr_in(line))?)
            },
        )
        .await
    }

    /// Waits for the file that a process writes when it is ready ([`ProcessBuilder::with_ready_file`]): the names of its
    /// listeners and their addresses.
    ///
    /// # Errors
    /// When it ends first or the limit passes; the text holds the end of the logs.
    pub async fn wait_for_ready_file(
        &self,
        limit: Duration,
    ) -> Result<BTreeMap<String, SocketAddr>> {
        self.ready(limit, "its ready file", || async {
            let bytes = fs::read(self.dir().join(READY_FILE)).ok()?;
            // Half a file is no JSON: then it is looked at again.
            serde_json::from_slice(&bytes).ok()
        })
        .await
    }

    /// Waits until something listens at `addr`.
    ///
    /// # Errors
    /// When it ends first or the limit passes; the text holds the end of the logs.
    pub async fn wait_for_tcp(&self, addr: SocketAddr, limit: Duration) -> Result<()> {
        self.ready(limit, &format!("a listener at {addr}"), || async {
            timeout(LOOK_LIMIT, TcpStream::connect(addr))
                .await
                .ok()?
                .ok()
                .map(drop)
        })
        .await
    }

    /// Waits until `GET http://addr/path` gives 200.
    ///
    /// # Errors
    /// When it ends first or the limit passes; the text holds the end of the logs.
    pub async fn wait_for_http(&self, addr: SocketAddr, path: &str, limit: Duration) -> Result<()> {
        self.ready(limit, &format!("200 from {addr}{path}"), || async {
            let status = timeout(LOOK_LIMIT, http_status(addr, path))
                .await
                .ok()?
                .ok()?;
            (status == 200).then_some(())
        })
        .await
    }

    /// SIGKILL to it and what it started, and waits for the end.
    ///
    /// # Errors
    /// When it does not go.
    pub async fn kill(&self) -> Result<()> {
        self.child().kill().await
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub async fn terminate(&self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait(limit).await
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.child().signal(signal)
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When it does not end within `limit`; the text holds the end of the logs.
    pub async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        self.child().wait(limit).await
    }

    /// Stops it (SIGSTOP): connections stay and nothing answers.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn pause(&self) -> Result<()> {
        self.child().pause()
    }

    /// Undoes [`Self::pause`].
    ///
    /// # Errors
    /// When the system refuses.
    pub fn resume(&self) -> Result<()> {
        self.child().resume()
    }

    /// Starts it again after its end, with the same arguments, in the same directory. Its logs begin anew, so that what
    /// the new process says is not mixed up with what the old one said.
    ///
    /// # Errors
    /// When it still runs or cannot be started.
    pub fn start_again(&self) -> Result<()> {
        let mut child = self.child.lock();
        if child.try_exit()?.is_none() {
            bail!("{} runs already", self.builder.name);
        }
        for file in [STDOUT, STDERR] {
            fs::rename(
                self.dir().join(file),
                self.dir().join(format!("{file}.before")),
            )?;
        }
        *child = Arc::new(self.builder.launch(&self.scratch)?);
        Ok(())
    }

    fn child(&self) -> Arc<ChildProcess> {
        Arc::clone(&self.child.lock())
    }

    /// [`eventually`], but gives up at once when the process ends, and shows its logs.
    async fn ready<T, F>(
        &self,
        limit: Duration,
        what: &str,
        mut condition: impl FnMut() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Option<T>>,
    {
        let name = &self.builder.name;
        let awaited = format!("{what} ({name})");
        let outcome = eventually(limit, &awaited, || {
            let condition = condition();
            async {
                if let Some(value) = condition.await {
                    return Some(Ok(value));
                }
                match self.exit_status() {
                    Ok(None) => None,
                    Ok(Some(status)) => Some(Err(anyhow!("{name} ended ({status}) before {what}"))),
                    Err(error) => Some(Err(error)),
                }
            }
        });
        outcome
            .await
            .and_then(|value| value)
            .with_context(|| self.log_tail())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = format!("\n{}\n", self.log_tail());
            // There is nobody left to tell if this fails.
            drop(std::io::stderr().write_all(text.as_bytes()));
        }
    }
}

/// The first `host:port` in a line, between whatever signs a log format puts around it.
fn addr_in(line: &str) -> Option<SocketAddr> {
    let part_of_an_address = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '[' | ']');
    line.split(|c| !part_of_an_address(c))
        .find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_any_log_format() {
        let wanted = Some("127.0.0.1:8080".parse().unwrap());
        assert_eq!(
            addr_in("INFO listening addr=127.0.0.1:8080 tls=false"),
            wanted
        );
        assert_eq!(
            addr_in(r#"{"ts":"2026-01-01T00:00:00Z","addr":"127.0.0.1:8080"}"#),
            wanted
        );
        assert_eq!(addr_in("http://127.0.0.1:8080/v1"), wanted);
        assert_eq!(
            addr_in("listening on [::1]:9"),
            Some("[::1]:9".parse().unwrap())
        );
        assert_eq!(addr_in("12:30:00 nothing here"), None);
    }
}
