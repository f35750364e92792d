//! CPU time and memory of a process, from `/proc`.

use std::time::Duration;

use anyhow::{Context, Result};

/// Ticks of `/proc/PID/stat` a second; fixed on Linux for user space.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time that a process has used, all threads, user and system.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} has gone"))?;
    // The name in brackets may hold spaces; fields are counted after it. utime and stime are 14 and 15.
    let after = stat.rsplit_once(')').context("no name in stat")?.1;
    let mut fields = after.split_whitespace().skip(11);
    let mut ticks = || -> Result<u64> { Ok(fields.next().context("stat is short")?.parse()?) };
    let total = ticks()? + ticks()?;
    Ok(Duration::from_millis(total * 1_000 / TICKS_PER_SECOND))
}

/// Resident memory of a process in MiB.
pub(crate) fn resident_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} has gone"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS in status")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1_024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_time() {
        let pid = std::process::id();
        assert!(resident_mib(pid).unwrap() > 0.5);
        assert!(cpu_time(pid).is_ok());
        assert!(cpu_time(u32::MAX).is_err());
    }
}
