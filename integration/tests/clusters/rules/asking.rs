use std::process::Stdio;

use integration::programs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::rules_world::LIMIT;

/// A command that asks on a terminal of its own before it does anything.
pub(crate) struct Asking {
    process: Child,
    pub(crate) shown: String,
}

impl Asking {
    pub(crate) async fn begin(args: &[&str]) -> Self {
        let towline = programs::towline().await.unwrap();
        Self::line(&format!("{} {}", towline.display(), args.join(" ")), "[y/N] ").await
    }

    /// Begins a line of a shell, and waits until it shows this.
    pub(crate) async fn line(line: &str, end: &str) -> Self {
        let script = Command::new("script")
            .args(["-qec", line, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut asking = Self { process: script.expect("script, of util-linux"), shown: String::new() };
        let asked = timeout(LIMIT, asking.read_until(end)).await.is_ok();
        assert!(asked, "it does not show {end:?}: {}", asking.shown);
        asking
    }

    async fn read_until(&mut self, end: &str) {
        let output = self.process.stdout.as_mut().unwrap();
        while !self.shown.contains(end) {
            let mut bytes = [0; 1024];
            let count = output.read(&mut bytes).await.unwrap();
            assert!(count > 0, "it ended before {end:?}: {}", self.shown);
            self.shown += &String::from_utf8_lossy(&bytes[..count]);
        }
    }

    /// Answers, and returns its exit code and what was on the terminal.
    pub(crate) async fn answer(mut self, answer: &str) -> (Option<i32>, String) {
        let mut input = self.process.stdin.take().unwrap();
        input.write_all(answer.as_bytes()).await.unwrap();
        let output = self.process.stdout.as_mut().unwrap();
        let ended = timeout(LIMIT, output.read_to_string(&mut self.shown)).await;
        ended.expect("it ends after an answer").unwrap();
        (timeout(LIMIT, self.process.wait()).await.expect("it ends").unwrap().code(), self.shown)
    }
}
