//! What the tab key completes: the script of a shell (`towline completion SHELL`) calls this program with what is typed so far, and the answer
//! is commands, options, and the names of the sections and clusters that are there now.
//!
//! Somebody waits meanwhile, and has asked for nothing yet. So a daemon and a hub have 300 ms to answer, what goes wrong is not told, and a
//! command through kubectl gets no names: to find its pods may run a program that asks for a password.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, complete};
use clap_complete::env::Shells;
use futures::future::{BoxFuture, FutureExt, join_all};
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use super::client::{AdminUrl, Daemon};
use super::{command_line, is_named, plugin_command_line, to_section};
use crate::job::JobList;
use crate::job::client::{Error, HubAccess, HubClient, encode};
use crate::job::command::compare_no_releases;
use crate::telemetry::LONG_VERSION;

/// By this variable a script says which shell asks.
const VARIABLE: &str = "_TOWLINE_COMPLETE";
/// The name by which kubectl looks for what completes `kubectl towline`.
const OF_KUBECTL: &str = "kubectl_complete-towline";
/// kubectl is not to add names of files (cobra's `ShellCompDirectiveNoFileComp`).
const NO_FILES: &str = ":4\n";
/// Deadline for a daemon and a hub, from connecting to the last byte of the answer.
const LONGEST: Duration = Duration::from_millis(300);

/// What an argument names.
#[derive(Clone, Copy)]
enum Named {
    Section,
    /// A document of a hub. Some of these commands take a section in its place.
    Cluster,
}

/// Writes what a shell has to source. It calls the `towline` that it finds in `PATH`.
pub fn script(shell: clap_complete::Shell, out: &mut impl Write) -> std::io::Result<()> {
    let mut text = Vec::new();
    if let Some(shell) = Shells::builtins().completer(&shell.to_string()) {
        shell.write_registration(VARIABLE, "towline", "towline", "towline", &mut text)?;
    }
    out.write_all(&text).and_then(|()| out.flush())
}

/// Answers a shell, or kubectl, if the program was called for that.
pub fn answer(jobs: JobList, arguments: &[OsString], out: &mut impl Write) -> bool {
    let answer = if arguments.first().is_some_and(|program| is_named(program, OF_KUBECTL)) {
        of_kubectl(jobs, arguments)
    } else if let Some(shell) = std::env::var_os(VARIABLE) {
        compare_no_releases();
        shell.to_str().and_then(|shell| of_shell(jobs, shell, arguments))
    } else {
        return false;
    };
    // There is nobody to tell that it can't be written.
    let _ = out.write_all(answer.unwrap_or_default().as_slice()).and_then(|()| out.flush());
    true
}

fn of_shell(jobs: JobList, shell: &str, arguments: &[OsString]) -> Option<Vec<u8>> {
    let completer = Shells::builtins().0.iter().copied().find(|completer| completer.is(shell))?;
    let mut words: Vec<OsString> = arguments.iter().skip_while(|argument| *argument != "--").skip(1).cloned().collect();
    // What upstream's scripts set: the word that is completed, by default the last one, and what separates the answers.
    let set = |name: &str| std::env::var(name).ok();
    let at = set("_CLAP_COMPLETE_INDEX").and_then(|index| index.parse().ok()).or(words.len().checked_sub(1))?;
    let here = std::env::current_dir().ok();
    let mut text = Vec::new();
    if completer.name() != "bash" {
        let mut command = with_names(jobs, &mut words, at);
        completer.write_complete(&mut command, words, here.as_deref(), &mut text).ok()?;
        return Some(text);
    }
    words.truncate(at + 1);
    let mut typed = joined(&words);
    let at = typed.len().checked_sub(1)?;
    // Of the word that is completed, bash keeps what is before its last part.
    let (whole, part) = (typed.last()?.to_str()?.to_owned(), words.last()?.to_str()?);
    let kept = whole.strip_suffix(part)?;
    let mut command = with_names(jobs, &mut typed, at);
    let candidates = complete(&mut command, typed, at, here.as_deref()).ok()?;
    let values = candidates.iter().map(|candidate| candidate.get_value().to_string_lossy());
    let values: Vec<String> = values.map(|value| value.strip_prefix(kept).unwrap_or(&value).to_owned()).collect();
    Some(values.join(&set("_CLAP_IFS").unwrap_or_else(|| "\n".to_owned())).into_bytes())
}

/// The words as they were typed: bash ends a word before and behind each `:` and `=`.
fn joined(words: &[OsString]) -> Vec<OsString> {
    let is_between =
        |word: &OsString| !word.is_empty() && word.as_encoded_bytes().iter().all(|byte| b":=".contains(byte));
    let (mut joined, mut is_open): (Vec<OsString>, _) = (Vec::new(), false);
    for word in words {
        match joined.last_mut().filter(|_| is_open || is_between(word)) {
            Some(last) => last.push(word),
            None => joined.push(word.clone()),
        }
        is_open = is_between(word);
    }
    joined
}

/// What kubectl reads: a candidate in each line, with its help behind a tab, and what to do with them in the last one.
fn of_kubectl(jobs: JobList, arguments: &[OsString]) -> Option<Vec<u8>> {
    let mut command = plugin_command_line(jobs);
    let candidates = complete(
        &mut command,
        arguments.to_vec(),
        arguments.len().checked_sub(1)?,
        std::env::current_dir().ok().as_deref(),
    );
    let line = |candidate: &CompletionCandidate| {
        let help = candidate.get_help().map(|help| help.to_string().lines().next().unwrap_or_default().to_owned());
        format!("{}\t{}\n", candidate.get_value().to_string_lossy(), help.unwrap_or_default())
    };
    let lines: String = candidates.ok()?.iter().map(line).collect();
    Some((lines + NO_FILES).into_bytes())
}

/// The command line, with what gives names to its arguments. `at` is the place of the word that is completed.
fn with_names(jobs: JobList, words: &mut [OsString], at: usize) -> clap::Command {
    let before: Arc<[OsString]> = to_section(words.get(..at).unwrap_or_default().to_vec(), jobs).into();
    for (word, meant) in words.iter_mut().zip(before.iter()) {
        word.clone_from(meant);
    }
    let line = command_line(jobs);
    // Hidden commands would be offered where no other one begins so.
    let is_meant = |command: &&clap::Command| {
        !command.is_hide_set() || before.get(1).is_some_and(|word| command.get_name() == word)
    };
    let typed = line.get_subcommands().filter(is_meant).cloned();
    let names = |named| {
        let before = Arc::clone(&before);
        ArgValueCompleter::new(move |typed: &OsStr| {
            let typed = typed.to_str().unwrap_or_default();
            let found = told(named, jobs, &before, typed).unwrap_or_default();
            found.iter().filter(|name| name.starts_with(typed)).map(CompletionCandidate::new).collect::<Vec<_>>()
        })
    };
    let mut typed = clap::Command::new("towline").version(LONG_VERSION.as_str()).subcommands(typed);
    // With this each command has its `--help`.
    typed.build();
    naming(typed, &names)
}

fn naming(command: clap::Command, names: &impl Fn(Named) -> ArgValueCompleter) -> clap::Command {
    let is_of_hub = command.get_arguments().any(|argument| argument.get_id() == "hub");
    let command = command.mut_args(|argument| {
        // What is hidden is offered where there is nothing else: options do not stand between the names.
        let is_option = !argument.is_positional();
        let argument = argument.hide(is_option);
        match argument.get_id().as_str() {
            "section" => argument.add(names(Named::Section)),
            "cluster" if is_of_hub => argument.add(names(Named::Cluster)),
            _ => argument,
        }
    });
    command.mut_subcommands(|inner| naming(inner, names))
}

/// The names that may be meant, as far as they are told in time.
fn told(named: Named, jobs: JobList, before: &[OsString], typed: &str) -> Option<Vec<String>> {
    let (command, matches) = parsed(jobs, before)?;
    let admin = matches.try_get_one::<AdminUrl>("admin").ok().flatten().cloned().unwrap_or_default();
    let mut asked = Vec::new();
    match named {
        Named::Section => asked.push(sections(admin)),
        Named::Cluster => {
            asked.extend(of_hub(&matches, typed));
            // Nothing says yet that it is not for a section.
            let is_open = before.len() == 2;
            if is_open && command == "explain" {
                asked.push(sections(admin));
            } else if is_open && jobs.iter().any(|job| job.orders().contains(&command.as_str())) {
                asked.push(sections_for(command, jobs, admin));
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let answers = runtime.block_on(async { join_all(asked.into_iter().map(|asked| timeout(LONGEST, asked))).await });
    // The name of a host may still be looked up.
    runtime.shutdown_background();
    Some(answers.into_iter().flatten().flatten().flatten().collect())
}

/// What is typed so far, and the environment, as the command itself reads them. Nothing if it is wrong, but for what is still missing: behind the
/// first mistake, a token and the hub that it is for might be taken from different places.
fn parsed(jobs: JobList, before: &[OsString]) -> Option<(String, ArgMatches)> {
    let parse = |allows_faults| command_line(jobs).ignore_errors(allows_faults).try_get_matches_from(before);
    let parsed = match parse(false) {
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => parse(true),
        parsed => parsed,
    };
    parsed.ok()?.remove_subcommand()
}

type Told = BoxFuture<'static, Option<Vec<String>>>;

fn sections(admin: AdminUrl) -> Told {
    let asked = async move {
        let status = admin.ask(&Method::GET, "/status?latest=true", None).await.ok()?;
        Some(status.get("sections")?.as_object()?.keys().cloned().collect())
    };
    asked.boxed()
}

/// The sections of jobs that carry out an order.
fn sections_for(order: String, jobs: JobList, admin: AdminUrl) -> Told {
    let are_meant = move |mut names: Vec<String>| {
        names.retain(|name| jobs.iter().any(|job| job.key() == name && job.orders().contains(&order.as_str())));
        names
    };
    sections(admin).map(|names| names.map(are_meant)).boxed()
}

/// The clusters of a hub, as far as the token may read them: those with what is typed in their names. A hub without syncsets gives the first ones of
/// the namespace, if one is typed.
fn of_hub(matches: &ArgMatches, typed: &str) -> Option<Told> {
    let access = HubAccess::from_arg_matches(matches).ok()?;
    let [hub, token] = ["hub", "token_file"].map(|id| matches.value_source(id));
    if hub == Some(ValueSource::CommandLine) && token == Some(ValueSource::EnvVariable) {
        // The token of the hub that is typed may still come.
        return None;
    }
    let namespace = matches.try_get_one::<String>("namespace").ok().flatten().cloned();
    let of_namespace = namespace.as_ref().map(|name| format!("&namespace={}", encode(name))).unwrap_or_default();
    let path = format!("/v1/fleet/clusters?limit=200&text={}{of_namespace}", encode(typed));
    let typed_namespace = typed.split_once('/').map(|(namespace, _)| namespace).or(namespace.as_deref());
    let within = typed_namespace.map(|name| format!("&namespace={}", encode(name))).unwrap_or_default();
    let first = format!("/v1/clusters?fields=metadata&limit=200{within}");
    let name = move |cluster: &Value| {
        let [of, name] = ["namespace", "name"].map(|field| cluster.get(field).and_then(Value::as_str));
        Some(if namespace.is_some() { name?.to_owned() } else { format!("{}/{}", of?, name?) })
    };
    let asked = async move {
        let client = HubClient::new(&access).await.ok()?;
        let clusters = match client.get(&path).await {
            Err(Error::Problem { status: StatusCode::NOT_FOUND, .. }) => client.get(&first).await.ok()?,
            answer => answer.ok()?,
        };
        Some(clusters.get("items")?.as_array()?.iter().filter_map(name).collect())
    };
    Some(asked.boxed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::OF_SECTION;
    use crate::jobs::JOBS;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    /// What completes the last word of a line.
    fn completed(line: &str) -> Vec<String> {
        let mut words = words(line);
        let at = words.len() - 1;
        let mut command = with_names(JOBS, &mut words, at);
        let candidates = complete(&mut command, words, at, None).expect("an answer");
        candidates.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_people_type_is_completed_and_nothing_else() {
        assert_eq!(completed("towline appr"), ["approve"]);
        assert_eq!(completed("towline status --exit"), ["--exit-code"]);
        assert_eq!(completed("towline get clusters --certificate"), ["--certificate-authority"]);
        assert_eq!(completed("towline completion z"), ["zsh"]);
        assert_eq!(completed("towline rollout st"), ["status"]);
        for (line, hidden) in
            [("towline ", "man"), ("towline ", "-section"), ("towline ", "--help"), ("towline ma", "man")]
        {
            assert!(!completed(line).iter().any(|word| word.contains(hidden)), "{line}: {hidden}");
        }
        assert!(!completed("towline explain-").iter().any(|word| word.contains(OF_SECTION)));
        // Where nothing else can be: nobody listens there.
        assert!(completed("towline status --admin 127.0.0.1:1 ").contains(&"--output".to_owned()));
    }

    #[test]
    fn nobody_is_asked_behind_a_mistake() {
        for line in ["towline explain", "towline pause --for 1h", "towline resume -n foo --hub http://127.0.0.1:1"] {
            assert!(parsed(JOBS, &words(line)).is_some(), "{line}");
        }
        for line in [
            "towline explain --nn foo",
            "towline pause --token-file x --fro 1h --hub http://127.0.0.1:1",
            "towline resume --hub http://[",
            "towline resum",
        ] {
            assert!(parsed(JOBS, &words(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn bash_gets_the_end_of_a_word_that_it_has_divided() {
        let divided = words("towline status --admin http : //127.0.0.1 : 1 --output = js");
        let expected = words("towline status --admin http://127.0.0.1:1 --output=js");
        assert_eq!(joined(&divided), expected);
        assert_eq!(joined(&words("towline status la")), words("towline status la"));
        let expected = [words("towline status"), vec![OsString::new()]].concat();
        assert_eq!(joined(&expected), expected, "the word that is begun");
    }

    #[test]
    fn kubectl_gets_its_lines() {
        let answer = of_kubectl(JOBS, &words("kubectl_complete-towline -n edge appr")).expect("an answer");
        let answer = String::from_utf8(answer).expect("text");
        let (about, last) = answer.strip_prefix("approve\t").and_then(|rest| rest.split_once('\n')).expect("a line");
        assert!(about.starts_with("Approve the changes") && last == NO_FILES, "{answer}");
    }
}
