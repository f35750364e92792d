//! Nothing outlives a test process.
//!
//! `Drop` is not enough: a test that is killed, or runs into the runner's time limit, drops nothing. So each test
//! process has a *lifeline* of three parts.
//!
//! - **A starter thread.** Every child asks the kernel for a signal on the death of its parent (`setpriv --pdeathsig`).
//!   The kernel means the parent *thread*, and threads of a runtime come and go, so all children are started by one
//!   thread that ends only with the process.
//! - **A guard**, a small shell script in a process group of its own that reads a pipe from us. The pipe ends when we
//!   end. It then wakes what we had stopped (a stopped process does not act on most signals), kills what is left and
//!   removes our temporary files.
//! - **A root** directory below which every [`crate::scratch::ScratchDir`] lies, so that the guard needs one path only.

use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use parking_lot::Mutex;

use crate::scratch::keep_requested;

/// Reads `watch PID` and `forget PID`; at the end of input ends the watched processes and removes the root (`$1`).
const GUARD_SCRIPT: &str = r#"
trap '' HUP INT TERM QUIT
watched=
while read -r verb pid; do
  case $verb in
    watch) watched="$watched $pid" ;;
    forget)
      kept=
      for each in $watched; do [ "$each" = "$pid" ] || kept="$kept $each"; done
      watched=$kept ;;
  esac
done
if [ -n "$watched" ]; then
  kill -CONT $watched
  tries=20
  while kill -0 $watched && [ $tries -gt 0 ]; do sleep 0.1; tries=$((tries - 1)); done
  kill -KILL $watched
fi 2>/dev/null
[ "$2" = keep ] || rm -rf -- "$1"
"#;

/// How many starts may wait for the starter thread.
const START_QUEUE: usize = 64;

static LIFELINE: OnceLock<Result<Lifeline, String>> = OnceLock::new();

struct Start {
    command: Command,
    reply: mpsc::SyncSender<io::Result<Child>>,
}

/// See the module's own text. One per process.
#[derive(Debug)]
pub(crate) struct Lifeline {
    root: PathBuf,
    guard: Mutex<ChildStdin>,
    // Held so that the handle of the guard lives as long as we do; it is never waited for, since it outlives us.
    _guard_process: Child,
    starter: mpsc::SyncSender<Start>,
}

impl Lifeline {
    /// The lifeline of this process, made at the first call.
    pub(crate) fn of_process() -> Result<&'static Self> {
        LIFELINE
            .get_or_init(|| Self::make().map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow!("{error}"))
    }

    fn make() -> Result<Self> {
        let root = tempfile::Builder::new()
            .prefix("tidegate-test-")
            .tempdir()
            .context("cannot make a temporary directory")?
            .keep();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755))?;
        let mut guard_process = Command::new("/bin/sh")
            .arg("-c")
            .arg(GUARD_SCRIPT)
            .arg("tidegate-test-guard")
            .arg(&root)
            .arg(if keep_requested() { "keep" } else { "remove" })
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start the guard of the test process")?;
        let guard = guard_process
            .stdin
            .take()
            .context("the guard has no standard input")?;
        let (starter, starts) = mpsc::sync_channel::<Start>(START_QUEUE);
        thread::Builder::new()
            .name("tidegate-starter".to_owned())
            .spawn(move || {
                while let Ok(Start { mut command, reply }) = starts.recv() {
                    // Whoever asked may have given up; the child then ends with its handle's owner, the guard.
                    drop(reply.send(command.spawn()));
                }
            })?;
        Ok(Self {
            root,
            guard: Mutex::new(guard),
            _guard_process: guard_process,
            starter,
        })
    }

    /// Below this all temporary files lie.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Starts `command` on the thread that lives as long as the process.
    pub(crate) fn start(&self, command: Command) -> Result<Child> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.starter
            .send(Start { command, reply })
            .context("the starter thread has gone")?;
        let child = answer.recv().context("the starter thread has gone")??;
        self.watch(child.id())?;
        Ok(child)
    }

    /// From now on the guard ends this process if we die.
    pub(crate) fn watch(&self, pid: u32) -> Result<()> {
        writeln!(self.guard.lock(), "watch {pid}").context("the guard has gone")
    }

    /// The process has been waited for: its number may be used again by others.
    pub(crate) fn forget(&self, pid: u32) -> Result<()> {
        writeln!(self.guard.lock(), "forget {pid}").context("the guard has gone")
    }
}
