//! The commands about syncsets, as an operator types them against the first replica.

use std::path::{Path, PathBuf};

use integration::Towline;
use serde_json::Value;

use crate::syncsets::world::Stage;

/// A file with a document.
pub(crate) fn file(name: &str, document: &Value) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("syncsets-{name}.json"));
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

impl Stage {
    /// What a command prints, which must succeed.
    pub(crate) async fn command(&self, args: &[&str]) -> String {
        let (code, output) = self.ended(args).await;
        assert_eq!(code, 0, "{args:?}: {output}\n{}", self.log());
        output
    }

    /// How a command ends, and what it prints.
    pub(crate) async fn ended(&self, args: &[&str]) -> (i32, String) {
        let server = format!("http://{}", self.replicas[0].api());
        let output = Towline::command([args, &["--hub", &server]].concat()).await.unwrap();
        let code = output.status.code().unwrap_or_else(|| panic!("{args:?}: {output:?}"));
        (code, String::from_utf8(output.stdout).unwrap())
    }

    /// What a command complains about, which must fail and print nothing.
    pub(crate) async fn refused(&self, args: &[&str]) -> String {
        let server = format!("http://{}", self.replicas[0].api());
        let output = Towline::command([args, &["--hub", &server]].concat()).await.unwrap();
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// What `towline diff` prints of a document, whatever it has found.
    pub(crate) async fn compared(&self, document: &Value) -> String {
        self.answered(document).await.1
    }

    /// With which code `towline diff --exit-code` of a document ends, and what it prints.
    pub(crate) async fn answered(&self, document: &Value) -> (i32, String) {
        let file = file(&format!("{}-diff", self.namespace), document);
        self.ended(&["diff", "-f", &file.display().to_string(), "--exit-code"]).await
    }

    /// What `towline explain` prints of an object on a cluster of the test.
    pub(crate) async fn explained(&self, cluster: &str, object: &str) -> String {
        self.command(&["explain", &format!("{}/{cluster}", self.namespace), object]).await
    }

    /// `towline diff` prints a line.
    pub(crate) async fn tells(&self, document: &Value, line: &str) -> String {
        let told = self.compared(document).await;
        assert!(told.lines().any(|found| found == line), "no {line} in\n{told}\n{}", self.log());
        told
    }
}

/// All of these lines are there.
pub(crate) fn has_lines(told: &str, expected: &[&str]) {
    for line in expected {
        assert!(told.lines().any(|found| found == *line), "no {line} in\n{told}");
    }
}
