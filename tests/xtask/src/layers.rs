//! Which crate may know which: `server -> service -> store -> core`; adapters only where a binary is wired;
//! the data plane never sees a store.

use std::process::Command;

use anyhow::{Context, ensure};

/// (crate, what it must not depend on, in any way except for tests).
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "tidegate-core",
        &[
            "tokio",
            "tonic",
            "sqlx",
            "redis",
            "hyper",
            "rand",
            "tidegate-proto",
            "tidegate-store",
        ],
    ),
    ("tidegate-proto", &["tidegate-core"]),
    (
        "tidegate-telemetry",
        &[
            "tidegate-core",
            "tidegate-proto",
            "tidegate-plane-client",
            "tidegate-store",
        ],
    ),
    (
        "tidegate-store",
        &["tonic", "sqlx", "redis", "hyper", "tidegate-proto"],
    ),
    (
        "tidegate-store-sql",
        &["tonic", "redis", "tidegate-proto", "tidegate-control"],
    ),
    (
        "tidegate-store-redis",
        &["tonic", "sqlx", "tidegate-proto", "tidegate-control"],
    ),
    (
        "tidegate-control",
        &[
            "sqlx",
            "redis",
            "tidegate-store-sql",
            "tidegate-store-redis",
            "tidegate-proxy",
        ],
    ),
    (
        "tidegate-plane-client",
        &["sqlx", "redis", "tidegate-store", "tidegate-control"],
    ),
    (
        "tidegate-proxy",
        &["sqlx", "redis", "tidegate-store", "tidegate-control"],
    ),
    (
        "tidegate-data-plane",
        &["sqlx", "redis", "tidegate-store", "tidegate-control"],
    ),
    (
        "tidegatectl",
        &[
            "sqlx",
            "redis",
            "tidegate-store",
            "tidegate-control",
            "tidegate-proxy",
        ],
    ),
];

/// Fails when a crate depends on one it must not know.
pub(crate) fn check() -> anyhow::Result<bool> {
    let mut passed = true;
    for (package, forbidden) in FORBIDDEN {
        let output = Command::new("cargo")
            .args([
                "tree",
                "--package",
                package,
                "--edges",
                "normal",
                "--prefix",
                "none",
            ])
            .args(["--format", "{p}"])
            .output()
            .context("cargo tree")?;
        ensure!(
            output.status.success(),
            "cargo tree failed for {package}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let known = String::from_utf8_lossy(&output.stdout).into_owned();
        for line in known.lines() {
            let name = line.split(' ').next().unwrap_or_default();
            if forbidden.contains(&name) {
                println!("{package} must not depend on {name}");
                passed = false;
            }
        }
    }
    Ok(passed)
}
