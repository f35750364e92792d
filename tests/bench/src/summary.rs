//! The figures: one flat object of dotted names, printed as a table and written as JSON.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

/// All figures by dotted name.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    figures: BTreeMap<String, f64>,
}

impl Summary {
    /// Adds a figure.
    pub(crate) fn set(&mut self, name: impl Into<String>, figure: f64) {
        self.figures.insert(name.into(), figure);
    }

    /// Prints the table and writes the file.
    #[expect(clippy::print_stdout, reason = "the table is what the command is for")]
    pub(crate) fn finish(&self, path: &Path) -> Result<()> {
        let width = self.figures.keys().map(String::len).max().unwrap_or(0);
        for (name, figure) in &self.figures {
            println!("{name:width$}  {figure:>12.3}");
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(&self.figures)?;
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_one_flat_object() {
        let mut summary = Summary::default();
        summary.set("decide.c1.throughput_ratio", 0.75);
        let folder = std::env::temp_dir().join(format!("tidegate-summary-{}", std::process::id()));
        let path = folder.join("summary.json");
        summary.finish(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let read: BTreeMap<String, f64> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, summary.figures);
    }
}
