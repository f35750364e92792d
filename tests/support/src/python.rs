//! Clients that are not ours: the official Python SDKs, a gRPC client made from the protos, and `grpcurl`.
//!
//! The scripts in `tests/clients` run in a virtual environment that is made once, in `target/tidegate-test`, from
//! `tests/clients/requirements.txt`. `pip` works as the machine has set it up. Each script prints one line of JSON per
//! mode and exits with 0 when all modes succeeded.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::process::{Finished, ProcessBuilder};
use crate::target_dir::{cache_dir, lock_cache};

/// How long a script may take unless the call says otherwise.
const USUAL_LIMIT: Duration = Duration::from_secs(60);

/// Where the scripts are.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients");

/// A virtual environment with the SDKs.
#[derive(Debug, Clone)]
pub struct PythonClients {
    python: PathBuf,
}

/// What a script is to do.
#[derive(Debug, Clone)]
pub struct ClientCall {
    /// With `/v1` for the OpenAI SDK and the wire check, without for the Anthropic SDK.
    pub base_url: String,
    /// The models or combos to ask for. Starting an SDK takes seconds, asking takes none: better many models in a call
    /// than many calls.
    pub models: Vec<String>,
    /// The API key.
    pub key: String,
    /// What to do, such as `json` and `stream`; empty: what the script does by itself. See `tests/clients/README.md`.
    pub modes: Vec<String>,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    /// How long the whole script may take.
    pub limit: Duration,
}

impl ClientCall {
    /// The usual modes, no further headers, 60 s.
    pub fn new(
        base_url: impl Into<String>,
        model: impl Into<String>,
        key: impl Into<String>,
    ) -> Self {
        Self {
            base_url: base_url.into(),
            models: vec![model.into()],
            key: key.into(),
            modes: Vec::new(),
            headers: Vec::new(),
            limit: USUAL_LIMIT,
        }
    }

    /// These models instead, one after the other, each with all modes.
    #[must_use]
    pub fn models<S: Into<String>>(mut self, models: impl IntoIterator<Item = S>) -> Self {
        self.models = models.into_iter().map(Into::into).collect();
        self
    }

    /// Only these modes.
    #[must_use]
    pub fn modes<S: Into<String>>(mut self, modes: impl IntoIterator<Item = S>) -> Self {
        self.modes = modes.into_iter().map(Into::into).collect();
        self
    }

    /// One more request header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// What a script did.
#[derive(Debug, Clone)]
pub struct ClientRun {
    /// Every mode succeeded.
    pub ok: bool,
    /// One object per model and mode.
    pub lines: Vec<Value>,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl ClientRun {
    /// The object of a mode (of the first model); null when the script did not come to it.
    #[must_use]
    pub fn mode(&self, mode: &str) -> &Value {
        let mut of_mode = self
            .lines
            .iter()
            .filter(|line| line.get("mode").is_some_and(|m| m == mode));
        of_mode.next().unwrap_or(&Value::Null)
    }

    /// The objects of a model, one per mode.
    pub fn of_model<'a>(&'a self, model: &'a str) -> impl Iterator<Item = &'a Value> {
        self.lines
            .iter()
            .filter(move |line| line.get("model").is_some_and(|m| m == model))
    }
}

impl PythonClients {
    /// Makes the virtual environment unless it is there.
    ///
    /// # Errors
    /// When Python cannot make one, or `pip` cannot install.
    pub async fn prepare() -> Result<Self> {
        tokio::task::spawn_blocking(prepare)
            .await
            .context("the preparation was cancelled")?
    }

    /// A program that came with the packages, such as `grpcurl`.
    #[must_use]
    pub fn tool(&self, name: &str) -> PathBuf {
        self.python.with_file_name(name)
    }

    /// Runs a script of `tests/clients`, such as `openai_chat.py`.
    ///
    /// # Errors
    /// When it does not end in time, or prints something else than JSON lines (it crashed; the text says how). A script
    /// that reports failures is no error here.
    pub async fn run(&self, script: &str, call: &ClientCall) -> Result<ClientRun> {
        let mut args: Vec<OsString> = vec![Path::new(SCRIPTS).join(script).into()];
        let mut option = |name: &str, value: &str| {
            // In one word, so that a value may begin with a dash.
            args.push(format!("--{name}={value}").into());
        };
        option("base-url", &call.base_url);
        for model in &call.models {
            option("model", model);
        }
        option("key", &call.key);
        for mode in &call.modes {
            option("mode", mode);
        }
        for (name, value) in &call.headers {
            option("header", &format!("{name}: {value}"));
        }
        let finished = ProcessBuilder::program(script, &self.python)
            .args(args)
            // Beside the scripts it would be a file of the source tree.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .run(call.limit)
            .await?;
        read(script, finished)
    }
}

fn read(script: &str, finished: Finished) -> Result<ClientRun> {
    let Finished {
        status,
        stdout,
        stderr,
    } = finished;
    let lines: Result<Vec<Value>, _> = stdout.lines().map(serde_json::from_str).collect();
    match (status.code(), lines) {
        (Some(code @ (0 | 1)), Ok(lines)) if !lines.is_empty() => Ok(ClientRun {
            ok: code == 0,
            lines,
            stderr,
        }),
        _ => bail!("{script} broke ({status})\n{stdout}{stderr}"),
    }
}

fn prepare() -> Result<PythonClients> {
    let requirements = Path::new(SCRIPTS).join("requirements.txt");
    let wanted = fs::read_to_string(&requirements).context("cannot read requirements.txt")?;
    let cache = cache_dir()?;
    let folder = cache.join("venv");
    let python = folder.join("bin/python");
    // Written last, so it stands for a whole environment; it names the place, since an environment cannot be moved.
    let mark = folder.join("tidegate-installed.txt");
    let marked = format!("{}\n{wanted}", folder.display());
    let _lock = lock_cache(&cache, "venv")?;
    if python.exists() && fs::read_to_string(&mark).is_ok_and(|found| found == marked) {
        return Ok(PythonClients { python });
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .context("cannot make a virtual environment: run tests/bootstrap/install.sh")?;
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-r",
    ];
    run(Command::new(&python).args(install).arg(&requirements))?;
    fs::write(&mark, marked)?;
    Ok(PythonClients { python })
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}\n{stdout}{stderr}", output.status);
    }
    Ok(())
}
