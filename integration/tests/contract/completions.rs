//! `towline completion`, in the shells that people have: a line is typed with the tab key in it, on a terminal, and has to do what it says.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helpers"
)]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use integration::{Towline, eventually, programs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::run;

const LIMIT: Duration = Duration::from_mins(1);
/// Its clusters are never reached.
const CONFIG: &str = r#"
[clusters.hub]
kubeconfig = "none-of-hub"
[clusters.edge]
kubeconfig = "none-of-edge"
[[sync]]
name = "lane-of-ships"
remote = "hub"
local = "edge"
resource = "ships.v1.demo.towline.dev"
namespace_prefix = "lane-"
"#;

/// A shell on a terminal of its own, which completes `towline`.
struct Shell {
    process: Child,
    /// What is on the terminal since the last word that was waited for.
    shown: String,
}

impl Shell {
    async fn start(folder: &Path, name: &str, program: &str, before: &str) -> Self {
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
            // By these zsh would choose other keys.
            .env_remove("EDITOR")
            .env_remove("VISUAL")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut shell = Self { process: process.expect("script, of util-linux"), shown: String::new() };
        // What is typed is shown as well, and has the words in two parts.
        shell.types(&format!("{before}source ./{name}; echo re''ady\n")).await;
        shell.shows("ready").await;
        shell
    }

    async fn types(&mut self, typed: &str) {
        self.process.stdin.as_mut().unwrap().write_all(typed.as_bytes()).await.unwrap();
    }

    /// What is shown on a line behind this word.
    async fn shows(&mut self, word: &str) -> String {
        let output = self.process.stdout.as_mut().unwrap();
        let seen = timeout(LIMIT, async {
            loop {
                if let Some((_, behind)) = self.shown.split_once(word)
                    && let Some((line, rest)) = behind.split_once('\r')
                {
                    let (line, rest) = (line.to_owned(), rest.to_owned());
                    self.shown = rest;
                    return line;
                }
                let mut bytes = [0; 4096];
                let count = output.read(&mut bytes).await.unwrap();
                assert!(count > 0, "it ended before {word:?}: {}", self.shown);
                self.shown += &String::from_utf8_lossy(&bytes[..count]);
            }
        });
        let seen = seen.await;
        assert!(seen.is_ok(), "it does not show {word:?}: {}", self.shown);
        seen.unwrap()
    }

    /// The line that the shell has, after the tab key in what is typed: `echo` is put before it.
    async fn completes(&mut self, typed: &str) -> String {
        self.types(&format!("{typed}\x01echo se''en \n")).await;
        self.shows("seen ").await.trim_end().to_owned()
    }
}

/// A connection whose request has arrived, and is never answered.
async fn unanswered(silent: &TcpListener) -> TcpStream {
    let arriving = async {
        let (mut connection, _) = silent.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(connection.read_u8().await.unwrap());
        }
        connection
    };
    timeout(LIMIT, arriving).await.expect("a request")
}

/// Waits until the client gives up.
async fn given_up(connection: &mut TcpStream) {
    while connection.read(&mut [0; 64]).await.is_ok_and(|count| count > 0) {}
}

/// A daemon that hangs: the request of the tab key is given up while one of a command, which is older, still waits.
async fn hangs(shell: &mut Shell, name: &str) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let line = format!("towline status --admin {} la", silent.local_addr().unwrap());
    let patient = Command::new(programs::towline().await.unwrap())
        .args(line.split(' ').skip(1))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let mut older = unanswered(&silent).await;
    let watched = async {
        let mut asked = unanswered(&silent).await;
        tokio::select! {
            biased;
            () = given_up(&mut older) => false,
            () = given_up(&mut asked) => true,
        }
    };
    let typed = format!("{line}\t");
    let (left, is_first) = tokio::join!(shell.completes(&typed), watched);
    assert!(is_first, "{name}: the completion waits as long as a command");
    assert_eq!(left, line, "{name}");
    drop(patient);
}

async fn completes(mut shell: Shell, name: &str, daemon: &Towline) {
    shell.types("towline appr\tlane --li\t--adm\t127.0.0.1:1 2>&1 | sed 's/^/sa''id: /'\n").await;
    let told = shell.shows("said: ").await;
    let expected = "towline: failed to connect to a daemon at http://127.0.0.1:1";
    assert!(told.starts_with(expected), "{name}: the line is not `towline approve lane --list --admin …`: {told}");

    let admin = daemon.admin_url();
    for command in ["status", "explain", "approve", "detach", "attach"] {
        // While two cores are busy with something else, a daemon may take longer than the 300 ms.
        let line = format!("towline {command} --admin {admin} la");
        eventually(format!("{name} to complete {line}"), LIMIT, async || {
            let completed = shell.completes(&format!("{line}\t")).await;
            if completed == format!("{line}ne-of-ships") { Ok(()) } else { Err(completed) }
        })
        .await
        .unwrap();
    }
    let nobody = "towline status --admin 127.0.0.1:1 la";
    assert_eq!(shell.completes(&format!("{nobody}\t")).await, nobody, "{name}");
    hangs(&mut shell, name).await;
    // Nothing was left on the terminal that nobody has typed.
    assert!(!shell.shown.contains("towline: "), "{name}: {}", shell.shown);
}

#[test]
fn bash_zsh_and_fish_complete_commands_options_and_the_sections_of_a_daemon_that_answers_at_once() {
    run(async {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("completions");
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).unwrap();
        let binary = std::path::absolute(programs::towline().await.unwrap()).unwrap();
        symlink(binary, folder.join("towline")).unwrap();
        let daemon = Towline::start(CONFIG, &[]).await.unwrap();
        eventually("the daemon to tell its sections", LIMIT, async || {
            daemon.admin().status().await.map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        // Without the files of the user. One that is not installed: apt-get install bash zsh fish
        for (name, program, before) in [
            ("bash", "bash --norc --noprofile -i", ""),
            ("zsh", "zsh -f -i", "autoload -U compinit; compinit -u -D; "),
            ("fish", "fish --no-config --private -i", ""),
        ] {
            completes(Shell::start(&folder, name, program, before).await, name, &daemon).await;
        }
    });
}

/// kubectl runs a program of this name for what is typed behind `kubectl towline`.
#[test]
fn kubectl_completes_the_plugin() {
    run(async {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("completions-of-kubectl");
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).unwrap();
        let binary = std::path::absolute(programs::towline().await.unwrap()).unwrap();
        for name in ["kubectl-towline", "kubectl_complete-towline"] {
            symlink(&binary, folder.join(name)).unwrap();
        }
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let kubectl = programs::control_plane("kubectl").await.unwrap();
        let completed = Command::new(kubectl)
            .args(["__complete", "towline", "-n", "edge", "appr"])
            .env("PATH", path)
            .output()
            .await;
        let lines = String::from_utf8(completed.unwrap().stdout).unwrap();
        assert!(lines.starts_with("approve\tApprove the changes") && lines.ends_with("\n:4\n"), "{lines}");
    });
}
