//! A data directory fresh from `initdb`, made once and copied for each server.
//!
//! `initdb` refuses root and therefore may run as a user who cannot enter our target directory. So it works in a
//! temporary directory, and we copy the result into the target directory and out of it again (`cp -a` keeps owners).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::account::Account;
use crate::scratch::ScratchDir;
use crate::target_dir::{cache_dir, lock_cache};

/// Part of the template's name: raise it when the arguments of `initdb` change.
const TEMPLATE_VERSION: u32 = 1;

/// Copies the template to `destination`, which must not exist; makes the template first if need be. Blocks.
pub(super) fn copy_to(
    binaries: &Path,
    account: Option<&Account>,
    superuser: &str,
    destination: &Path,
) -> Result<()> {
    let template = ensure(binaries, account, superuser)?;
    copy(&template, destination)
}

fn ensure(binaries: &Path, account: Option<&Account>, superuser: &str) -> Result<PathBuf> {
    let cache = cache_dir()?;
    let owner = account.map_or("self", |account| account.name.as_str());
    let version = run(Command::new(binaries.join("postgres")).arg("--version"))?;
    let version: String = version
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '.')
        .collect();
    let template = cache.join(format!("{version}-{owner}-{TEMPLATE_VERSION}"));
    if template.exists() {
        return Ok(template);
    }
    let _lock = lock_cache(&cache, "postgres")?;
    if template.exists() {
        return Ok(template);
    }
    let scratch = ScratchDir::new("initdb")?;
    if let Some(account) = account {
        chown(scratch.path(), Some(account.uid), Some(account.gid))?;
    }
    let data = scratch.path().join("data");
    initdb(binaries, account, superuser, &data)?;
    // Whoever sees the final name sees all of it.
    let unfinished = template.with_extension("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    copy(&data, &unfinished)?;
    fs::rename(&unfinished, &template).context("cannot name the template")?;
    Ok(template)
}

fn initdb(binaries: &Path, account: Option<&Account>, superuser: &str, data: &Path) -> Result<()> {
    let program = binaries.join("initdb");
    let mut command = match account {
        None => Command::new(program),
        Some(account) => {
            let mut command = Command::new("setpriv");
            command
                .arg(format!("--reuid={}", account.uid))
                .arg(format!("--regid={}", account.gid))
                .args(["--init-groups", "--"])
                .arg(program);
            command
        }
    };
    command
        .arg("--pgdata")
        .arg(data)
        .args([
            "--username",
            superuser,
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
        ])
        // Small segments: the copy for each server is a third smaller.
        .args(["--no-sync", "--wal-segsize=4"])
        .current_dir(data.parent().unwrap_or_else(|| Path::new("/")))
        .env("LC_ALL", "C");
    run(&mut command).map(drop)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp")
        .args(["-a", "--reflink=auto", "--"])
        .args([from, to]))
    .map(drop)
}

fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_owned();
    let name = Path::new(&program)
        .file_name()
        .unwrap_or_else(|| OsStr::new("?"))
        .display()
        .to_string();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!(
            "{name}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
