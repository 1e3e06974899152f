//! `towline completion`, in the shells that people have: a line is typed with the tab key in it, on a terminal, and has to do what it says.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helpers"
)]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use integration::{Towline, programs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::run;

const LIMIT: Duration = Duration::from_mins(1);

/// A shell on a terminal of its own.
struct Shell {
    process: Child,
    shown: String,
}

impl Shell {
    /// Types something, and waits until the end of a line shows this word.
    async fn type_and_see(&mut self, typed: &str, word: &str) {
        let (input, output) = (self.process.stdin.as_mut().unwrap(), self.process.stdout.as_mut().unwrap());
        input.write_all(typed.as_bytes()).await.unwrap();
        let end = format!("{word}\r");
        let seen = timeout(LIMIT, async {
            while !self.shown.contains(&end) {
                let mut bytes = [0; 4096];
                let count = output.read(&mut bytes).await.unwrap();
                assert!(count > 0, "it ended before {word:?}: {}", self.shown);
                self.shown += &String::from_utf8_lossy(&bytes[..count]);
            }
        });
        assert!(seen.await.is_ok(), "it does not show {word:?}: {}", self.shown);
    }
}

async fn completes(folder: &Path, name: &str, program: &str, before: &str) {
    let completion = Towline::command(["completion", name]).await.unwrap();
    assert!(completion.status.success() && completion.stderr.is_empty(), "{completion:?}");
    std::fs::write(folder.join(name), completion.stdout).unwrap();
    let path = std::env::var("PATH").unwrap();
    let process = Command::new("script")
        .args(["-qec", program, "/dev/null"])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("HOME", folder)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let process = process.expect("script, of util-linux");
    let mut shell = Shell { process, shown: String::new() };
    // What is typed is shown as well, and has the words in two parts.
    shell.type_and_see(&format!("{before}source ./{name}; echo re''ady\n"), "ready").await;
    shell.type_and_see("towline appr\tlane --li\t--adm\t127.0.0.1:1; echo do''ne\n", "done").await;
    let told = "failed to connect to a daemon at http://127.0.0.1:1";
    assert!(
        shell.shown.contains(told),
        "{name}: the line is not `towline approve lane --list --admin …`: {}",
        shell.shown
    );
}

#[test]
fn bash_zsh_and_fish_complete_commands_and_options() {
    run(async {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("completions");
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).unwrap();
        let binary = std::path::absolute(programs::towline().await.unwrap()).unwrap();
        std::os::unix::fs::symlink(binary, folder.join("towline")).unwrap();
        // Without the files of the user. One that is not installed: apt-get install bash zsh fish
        completes(&folder, "bash", "bash --norc --noprofile -i", "").await;
        completes(&folder, "zsh", "zsh -f -i", "autoload -U compinit; compinit -u -D; ").await;
        completes(&folder, "fish", "fish --no-config --private -i", "").await;
    });
}
