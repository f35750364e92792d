//! One child process: started on the lifeline, signalled, waited for, never left behind.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;

use crate::lifeline::Lifeline;
use crate::wait::eventually;

/// How much of the end of a log is read for a message, in bytes.
const TAIL_BYTES: u64 = 64 * 1024;
/// How many lines of a log are shown when something fails.
const TAIL_LINES: usize = 50;
/// How long a process that got SIGKILL may take to go.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// What children inherit of our environment; the rest might change what they do.
const INHERITED: [&str; 9] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "USER",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "LLVM_PROFILE_FILE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];
/// Escape codes would hide what a test looks for in a log.
const PLAIN_LOGS: (&str, &str) = ("NO_COLOR", "1");

/// What to start.
#[derive(Debug)]
pub(crate) struct ChildSpec {
    /// For messages.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) work_dir: PathBuf,
    /// Standard error goes here, and standard output too without `output`. Appended, so that a restart keeps history.
    pub(crate) log: PathBuf,
    /// Standard output, if it is wanted apart.
    pub(crate) output: Option<PathBuf>,
    /// Run as this user (only root may).
    pub(crate) user: Option<String>,
    /// What the kernel sends the child when we die.
    pub(crate) on_our_death: Signal,
    /// What [`ChildProcess`] sends first when dropped; SIGKILL follows if the child does not go within the time.
    pub(crate) on_drop: (Signal, Duration),
}

/// A running (or ended) child. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    name: String,
    pid: u32,
    logs: Vec<PathBuf>,
    on_drop: (Signal, Duration),
    state: Mutex<State>,
    stopped: Mutex<Vec<u32>>,
}

#[derive(Debug)]
struct State {
    child: Child,
    ended: Option<ExitStatus>,
}

impl ChildProcess {
    pub(crate) fn start(spec: ChildSpec) -> Result<Self> {
        let log = open_log(&spec.log)?;
        let output = match &spec.output {
            Some(path) => open_log(path)?,
            None => log.try_clone()?,
        };
        let mut command = Command::new("setpriv");
        if let Some(user) = &spec.user {
            let group = crate::account::primary_group(user)?;
            command
                .arg(format!("--reuid={user}"))
                .arg(format!("--regid={group}"));
            command.arg("--init-groups");
        }
        let death_signal = spec.on_our_death.as_str().trim_start_matches("SIG");
        command
            .args(["--pdeathsig", death_signal, "--"])
            .arg(&spec.program)
            .args(&spec.args)
            .env_clear()
            .envs(inherited_env())
            .env(PLAIN_LOGS.0, PLAIN_LOGS.1)
            .envs(spec.env)
            .current_dir(&spec.work_dir)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(log)
            // A Ctrl-C in the terminal is for the runner; its children go when it goes.
            .process_group(0);
        let child = Lifeline::of_process()?
            .start(command)
            .with_context(|| format!("cannot start {}", spec.program.display()))?;
        Ok(Self {
            name: spec.name,
            pid: child.id(),
            logs: spec.output.into_iter().chain([spec.log]).collect(),
            on_drop: spec.on_drop,
            state: Mutex::new(State { child, ended: None }),
            stopped: Mutex::new(Vec::new()),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, if it did.
    pub(crate) fn try_exit(&self) -> Result<Option<ExitStatus>> {
        let mut state = self.state.lock();
        if state.ended.is_none()
            && let Some(status) = state.child.try_wait()?
        {
            state.ended = Some(status);
            Lifeline::of_process()?.forget(self.pid)?;
        }
        Ok(state.ended)
    }

    /// Sends `signal`; does nothing when the process has been waited for.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        // Under the lock nobody waits for the child, so the number cannot have passed to another process.
        let state = self.state.lock();
        if state.ended.is_some() {
            return Ok(());
        }
        send(self.pid, signal)
    }

    /// Waits until it ends.
    pub(crate) async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {} (pid {})", self.name, self.pid);
        eventually(limit, &what, || async { self.try_exit().transpose() })
            .await
            .and_then(|status| status)
            .with_context(|| self.tail())
    }

    /// SIGKILL to it and all it started, and waits for it.
    pub(crate) async fn kill(&self) -> Result<()> {
        let offspring = descendants(self.pid);
        self.signal(Signal::SIGKILL)?;
        for pid in &offspring {
            // It may have gone by itself.
            drop(send(*pid, Signal::SIGKILL));
        }
        self.wait(KILL_LIMIT).await?;
        self.forget_stopped()?;
        let what = format!("the end of what {} had started", self.name);
        eventually(KILL_LIMIT, &what, || async {
            offspring.iter().all(|pid| !is_running(*pid)).then_some(())
        })
        .await
    }

    /// Stops it and all it started (SIGSTOP): nothing answers, connections stay.
    pub(crate) fn pause(&self) -> Result<()> {
        let lifeline = Lifeline::of_process()?;
        self.signal(Signal::SIGSTOP)?;
        // The parent first, so that no child appears behind our back; children may fork still, hence the loop.
        loop {
            let mut stopped = self.stopped.lock();
            let new: Vec<u32> = descendants(self.pid)
                .into_iter()
                .filter(|pid| !stopped.contains(pid))
                .collect();
            if new.is_empty() {
                return Ok(());
            }
            for pid in new {
                lifeline.watch(pid)?;
                drop(send(pid, Signal::SIGSTOP));
                stopped.push(pid);
            }
        }
    }

    /// Undoes [`Self::pause`].
    pub(crate) fn resume(&self) -> Result<()> {
        for pid in self.stopped.lock().iter() {
            drop(send(*pid, Signal::SIGCONT));
        }
        self.forget_stopped()?;
        self.signal(Signal::SIGCONT)
    }

    fn forget_stopped(&self) -> Result<()> {
        let lifeline = Lifeline::of_process()?;
        for pid in self.stopped.lock().drain(..) {
            lifeline.forget(pid)?;
        }
        Ok(())
    }

    /// The last lines of its logs, each with a heading.
    pub(crate) fn tail(&self) -> String {
        let tail = |path: &PathBuf| {
            let lines = match last_lines(path) {
                Ok(lines) if lines.is_empty() => return None,
                Ok(lines) => lines,
                Err(error) => format!("(cannot be read: {error})"),
            };
            Some(format!(
                "--- end of {} of {} ---\n{lines}",
                path.display(),
                self.name
            ))
        };
        let tails: Vec<String> = self.logs.iter().filter_map(tail).collect();
        tails.join("\n")
    }

    fn end_now(&self) -> Result<()> {
        if self.try_exit()?.is_some() {
            return Ok(());
        }
        let offspring = descendants(self.pid);
        self.resume()?;
        let (signal, grace) = self.on_drop;
        self.signal(signal)?;
        if self.wait_blocking(grace)? {
            return Ok(());
        }
        self.signal(Signal::SIGKILL)?;
        for pid in offspring {
            drop(send(pid, Signal::SIGKILL));
        }
        if !self.wait_blocking(KILL_LIMIT)? {
            bail!("{} (pid {}) does not end", self.name, self.pid);
        }
        Ok(())
    }

    fn wait_blocking(&self, limit: Duration) -> Result<bool> {
        let end = Instant::now() + limit;
        loop {
            if self.try_exit()?.is_some() {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // A failure here leaves the child to the kernel's signal and to the guard.
        drop(self.end_now());
    }
}

fn open_log(path: &Path) -> Result<File> {
    let opened = File::options().create(true).append(true).open(path);
    opened.with_context(|| format!("cannot open {}", path.display()))
}

fn inherited_env() -> impl Iterator<Item = (&'static str, OsString)> {
    INHERITED
        .into_iter()
        .filter_map(|name| std::env::var_os(name).map(|value| (name, value)))
}

fn send(pid: u32, signal: Signal) -> Result<()> {
    kill(Pid::from_raw(i32::try_from(pid)?), signal)
        .with_context(|| format!("cannot send {signal} to process {pid}"))
}

fn is_running(pid: u32) -> bool {
    stat(OsStr::new(&pid.to_string())).is_some_and(|(state, _)| state != 'Z')
}

/// State letter and parent of a process, from `/proc/PID/stat`.
fn stat(pid: &OsStr) -> Option<(char, u32)> {
    let text = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    // The second field is the name in brackets and may hold anything; what follows the last bracket is regular.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// All running processes below `ancestor`, parents before their children.
fn descendants(ancestor: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let parents: Vec<(u32, u32)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let pid = name.to_str()?.parse().ok()?;
            let (state, parent) = stat(&name)?;
            (state != 'Z').then_some((pid, parent))
        })
        .collect();
    let mut found = vec![ancestor];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(pid, _)| *pid),
        );
        next += 1;
    }
    found.split_off(1)
}

fn last_lines(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines
        .get(lines.len().saturating_sub(TAIL_LINES)..)
        .unwrap_or_default()
        .join("\n"))
}
