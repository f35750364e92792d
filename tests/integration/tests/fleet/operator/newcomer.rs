//! Somebody who knows of `tidegatectl` what README and help tell.

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use serde_json::Value;
use tidegate_integration::World;
use tidegate_test_support::{ADMIN_TOKEN, Process, ProcessBuilder, bin_dir};

use super::manual::{Manual, of_the_readme};
use super::said;

/// A new operator, with every command line that they came up with.
pub(super) struct Newcomer<'a> {
    world: &'a World,
    asked: Mutex<Vec<Vec<String>>>,
}

impl<'a> Newcomer<'a> {
    pub(super) fn of(world: &'a World) -> Self {
        let asked = Mutex::default();
        Self { world, asked }
    }

    fn asks(&self, arguments: &[&str]) {
        let words = arguments.iter().map(|&word| word.to_owned());
        self.asked.lock().push(words.collect());
    }

    /// What is printed for people.
    pub(super) async fn reads(&self, arguments: &[&str]) -> Result<String> {
        self.asks(arguments);
        said(self.world, arguments).await
    }

    /// Asks once more where a store did not answer in time, as may be on a busy machine and as the answer says.
    pub(super) async fn insists(&self, arguments: &[&str]) -> Result<String> {
        match self.reads(arguments).await {
            Err(error) if error.to_string().contains("CP0009") => self.reads(arguments).await,
            done => done,
        }
    }

    /// The same in a form that a test reads best.
    pub(super) async fn finds(&self, arguments: &[&str]) -> Result<Value> {
        self.finds_at(0, arguments).await
    }

    /// The same at one replica.
    pub(super) async fn finds_at(&self, replica: usize, arguments: &[&str]) -> Result<Value> {
        self.asks(&[arguments, &["-o", "json"]].concat());
        self.world.fleet.ctl_json(replica, arguments).await
    }

    /// A command that runs on.
    pub(super) fn watches(&self, arguments: &[&str]) -> Result<Process> {
        self.asks(arguments);
        let replica = self
            .world
            .fleet
            .control_planes
            .get(1)
            .context("a replica")?;
        ProcessBuilder::program("tidegatectl", bin_dir()?.join("tidegatectl"))
            .args(arguments)
            .env("TIDEGATE_CONTROL_PLANE", format!("http://{}", replica.grpc))
            .env("TIDEGATE_ADMIN_TOKEN", ADMIN_TOKEN)
            .start()
    }

    /// All that was asked can be known: the programs' help tells each word, and the README each command.
    pub(super) async fn needed_no_more_than_readme_and_help(self) -> Result<()> {
        let mut manual = Manual::default();
        let mut shown = Vec::new();
        for line in of_the_readme()? {
            shown.push(
                manual
                    .explain(&line)
                    .await
                    .with_context(|| format!("README: {line:?}"))?,
            );
        }
        for line in self.asked.into_inner() {
            let command = manual
                .explain(&line)
                .await
                .with_context(|| format!("{line:?}"))?;
            ensure!(
                shown.contains(&command),
                "the README does not show {command:?}"
            );
        }
        Ok(())
    }
}
