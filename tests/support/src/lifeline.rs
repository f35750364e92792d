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
//! - **Root directories**, in memory and on disk, below which every [`crate::scratch::ScratchDir`] lies, so that the guard
//!   knows all there is to remove.

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

/// Reads `watch PID` and `forget PID`; at the end of input ends the watched processes and removes the directories that
/// are its arguments.
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
[ $# -eq 0 ] || rm -rf -- "$@"
"#;

/// Free memory (KiB) from which on temporary files lie in memory.
const MEMORY_NEEDED_KIB: u64 = 4 * 1024 * 1024;
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
    fast_root: PathBuf,
    disk_root: PathBuf,
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
        let disk_root = make_root(&std::env::temp_dir())?;
        let fast_root = match memory_folder() {
            Some(folder) => make_root(folder)?,
            None => disk_root.clone(),
        };
        let removed = if keep_requested() {
            Vec::new()
        } else {
            vec![&fast_root, &disk_root]
        };
        let mut guard_process = Command::new("/bin/sh")
            .arg("-c")
            .arg(GUARD_SCRIPT)
            .arg("tidegate-test-guard")
            .args(removed)
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
            fast_root,
            disk_root,
            guard: Mutex::new(guard),
            _guard_process: guard_process,
            starter,
        })
    }

    /// In memory if the machine has room there, else on disk.
    pub(crate) fn fast_root(&self) -> &Path {
        &self.fast_root
    }

    /// On disk, or wherever the machine keeps temporary files.
    pub(crate) fn disk_root(&self) -> &Path {
        &self.disk_root
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

fn make_root(parent: &Path) -> Result<PathBuf> {
    let root = tempfile::Builder::new()
        .prefix("tidegate-test-")
        .tempdir_in(parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?
        .keep();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755))?;
    Ok(root)
}

/// A file system in memory with room for servers: a Postgres has a thousand files, which cost a second on a busy disk
/// and a tenth of it here. Containers often have one that is too small.
fn memory_folder() -> Option<&'static Path> {
    let folder = Path::new("/dev/shm");
    let answer = Command::new("df")
        .args(["--output=avail", "-k"])
        .arg(folder)
        .output()
        .ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    let available: u64 = text.lines().nth(1)?.trim().parse().ok()?;
    // Trying is the surest way to learn whether we may write there.
    (available >= MEMORY_NEEDED_KIB && tempfile::tempfile_in(folder).is_ok()).then_some(folder)
}
