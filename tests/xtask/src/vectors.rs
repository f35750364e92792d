//! Which numbered vectors of the specifications have a test (decision 0).

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, ensure};

/// Prints per specification how many vectors have a test and which do not. Never fails for a missing one.
pub(crate) fn print() -> anyhow::Result<bool> {
    let listed = std::fs::read_to_string("tests/vectors.txt")
        .context("tests/vectors.txt: run this in the root of the repository")?;
    let tests = test_names()?;
    for (specification, ids) in by_specification(&listed) {
        let missing: Vec<&str> = ids
            .iter()
            .copied()
            .filter(|id| !tests.iter().any(|test| names(test, specification, id)))
            .collect();
        println!(
            "{specification}: {} of {} vectors have a test; missing: {}",
            ids.len() - missing.len(),
            ids.len(),
            if missing.is_empty() {
                "none".to_owned()
            } else {
                missing.join(" ")
            }
        );
    }
    Ok(true)
}

fn by_specification(listed: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut specifications: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in listed.lines().filter(|line| !line.starts_with('#')) {
        if let Some((specification, id)) = line.split_once(' ') {
            specifications.entry(specification).or_default().push(id);
        }
    }
    specifications
}

fn test_names() -> anyhow::Result<Vec<String>> {
    let output = Command::new("cargo")
        .args([
            "nextest",
            "list",
            "--workspace",
            "--message-format",
            "oneline",
        ])
        .output()
        .context("cargo nextest list")?;
    ensure!(
        output.status.success(),
        "cargo nextest list failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect())
}

/// Whether a test's name holds the vector's, followed by nothing that would make it another id.
fn names(test: &str, specification: &str, id: &str) -> bool {
    let wanted = format!("vector_{specification}_{id}");
    test.match_indices(&wanted).any(|(start, found)| {
        test.get(start + found.len()..)
            .and_then(|rest| rest.chars().next())
            .is_none_or(|next| !next.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_not_found_in_a_longer_one() {
        assert!(names("core breaker::vector_failure_08", "failure", "08"));
        assert!(names(
            "core x::case_1_vector_routing_v_cw3_waits",
            "routing",
            "v_cw3"
        ));
        assert!(!names("core x::vector_routing_v_cw3b", "routing", "v_cw3"));
        assert!(!names("core x::vector_routing_v_cw10", "routing", "v_cw1"));
        assert!(!names("core x::vector_sessions_08", "failure", "08"));
    }

    #[test]
    fn the_list_is_read_by_specification() {
        let listed = by_specification("# note\nfailure 01\nfailure 02\nrouting x1\n");
        assert_eq!(listed["failure"], ["01", "02"]);
        assert_eq!(listed["routing"], ["x1"]);
    }
}
