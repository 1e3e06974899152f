//! The commands for a running daemon: what is asked of its admin server, and how the answers are printed.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::client::{AdminUrl, Daemon, Error};
use super::{table, watch};
use crate::config::{InvalidName, SectionName};
use crate::job::command::Exit;
use crate::job::output::{Format, Output};
use crate::job::terminal::{Yes, consent, telling};

/// A command for a running daemon, sent to its admin server.
#[derive(Debug, PartialEq, Eq, Subcommand)]
pub enum Remote {
    /// Show the clusters and sections of a running daemon, the worst first, and the objects that fail or wait; or one object
    Status(StatusCommand),
    /// Approve the changes that a section holds, such as a mass deletion
    Approve {
        /// Section of the running daemon
        #[arg(value_parser = section_name)]
        section: SectionName,
        /// Approve only what is held under this name: `NAMESPACE/NAME`, or `NAME` of what has no namespace
        #[arg(conflicts_with = "list")]
        name: Option<String>,
        /// Only list the held changes by object, and approve nothing
        #[arg(long, conflicts_with = "yes")]
        list: bool,
        /// Whether to ask, how to print the list or what was approved, and how to reach the daemon.
        #[command(flatten)]
        order: OrderOptions,
    },
    /// End a section for good: remove its finalizers on the remote and its marks on local objects, which stay
    Detach {
        /// Section of the running daemon
        #[arg(value_parser = section_name)]
        section: SectionName,
        /// The local cluster is gone for good: release the remote objects without it
        #[arg(long)]
        local_gone: bool,
        /// Whether to ask, how to print the answer, and how to reach the daemon.
        #[command(flatten)]
        order: OrderOptions,
    },
    /// Do again what a section has done: send a release again
    #[command(name = "resync-section", hide = true, override_usage = "towline resync [OPTIONS] <SECTION> [NAME]")]
    Resync(ResyncCommand),
    /// Show what is known of one object of a section: both sides, what it waits for, and what comes next
    #[command(name = "explain-section", hide = true, override_usage = "towline explain [OPTIONS] <SECTION> <NAME>")]
    Explain(ExplainCommand),
    /// Resume a section that was detached
    Attach {
        /// Section of the running daemon
        #[arg(value_parser = section_name)]
        section: SectionName,
        /// How to print the answer.
        #[command(flatten)]
        format: Format,
        /// How to reach the daemon.
        #[command(flatten)]
        access: Access,
    },
}

/// `towline status`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct StatusCommand {
    /// Only this section
    #[arg(value_parser = section_name, conflicts_with = "tree")]
    pub section: Option<SectionName>,
    /// Only this object of the section, also if it is not among those that are listed: NAMESPACE/NAME, or NAME of what has no namespace
    #[arg(conflicts_with_all = ["tree", "exit_code", "watch"])]
    pub object: Option<String>,
    /// Admin server of the daemon
    #[arg(long, value_name = "URL", default_value_t)]
    pub admin: AdminUrl,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
    /// Also show the actor tree
    #[arg(long)]
    pub tree: bool,
    /// Exit with code 3 if a cluster or a section is not well
    #[arg(long, conflicts_with = "watch")]
    pub exit_code: bool,
    /// Draw it again and again; where there is no terminal, print each change of a cluster or a section
    #[arg(short, long)]
    pub watch: bool,
}

/// `towline resync SECTION`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct ResyncCommand {
    /// Section of the running daemon
    #[arg(value_parser = section_name)]
    pub section: SectionName,
    /// Only this object: NAMESPACE/NAME
    pub name: Option<String>,
    /// How to print the answer.
    #[command(flatten)]
    pub format: Format,
    /// How to reach the daemon.
    #[command(flatten)]
    pub access: Access,
}

/// `towline explain SECTION NAME`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct ExplainCommand {
    /// Section of the running daemon
    #[arg(value_parser = section_name)]
    pub section: SectionName,
    /// The object: NAMESPACE/NAME
    pub name: String,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
    /// Admin server of the daemon
    #[arg(long, value_name = "URL", default_value_t)]
    pub admin: AdminUrl,
}

/// Parses a section's name, or the key of its table: `status_sync` means `status-sync`.
fn section_name(text: &str) -> Result<SectionName, InvalidName> {
    text.replace('_', "-").parse()
}

/// How to reach the daemon, and the token for changes.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Access {
    /// Admin server of the daemon
    #[arg(long, value_name = "URL", default_value_t)]
    pub admin: AdminUrl,
    /// File with the admin token, if the daemon has one (`daemon.admin_token_file`)
    #[arg(long, value_name = "FILE", env = "TOWLINE_ADMIN_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
}

/// The options of an order that asks before it is carried out.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct OrderOptions {
    /// Whether to ask.
    #[command(flatten)]
    pub consent: Yes,
    /// How to print the answer.
    #[command(flatten)]
    pub format: Format,
    /// How to reach the daemon.
    #[command(flatten)]
    pub access: Access,
}

impl Remote {
    /// The file with the token that is sent along, if one is.
    pub(super) fn token_file(&self) -> Option<&Path> {
        match self {
            Self::Approve { list: false, order: OrderOptions { access, .. }, .. }
            | Self::Detach { order: OrderOptions { access, .. }, .. }
            | Self::Attach { access, .. }
            | Self::Resync(ResyncCommand { access, .. }) => access.token_file.as_deref(),
            Self::Approve { list: true, .. } | Self::Status(_) | Self::Explain(_) => None,
        }
    }

    /// Calls the daemon and writes its answer. Needs a tokio runtime.
    pub async fn execute(&self, out: &mut impl Write) -> Result<Exit, Error> {
        let admin = match self {
            Self::Status(StatusCommand { admin, .. }) | Self::Explain(ExplainCommand { admin, .. }) => admin,
            Self::Approve { order: OrderOptions { access, .. }, .. }
            | Self::Detach { order: OrderOptions { access, .. }, .. }
            | Self::Attach { access, .. }
            | Self::Resync(ResyncCommand { access, .. }) => &access.admin,
        };
        self.execute_at(admin, out).await
    }

    /// The same with another daemon than that of its options.
    pub(super) async fn execute_at(&self, daemon: &impl Daemon, out: &mut impl Write) -> Result<Exit, Error> {
        let mut exit = Exit::Done;
        let text = match self {
            Self::Status(StatusCommand { section: Some(section), object: Some(object), format, .. }) => {
                let path = named("explain", section, Some(object));
                let found = daemon.ask(&Method::GET, &path, None).await?;
                format.output.document(&found).unwrap_or_else(|| match format.output {
                    Output::Name => format!("{object}\n"),
                    _ => table::objects_of(section.as_str(), &found).unwrap_or_else(|| lines(&found)),
                })
            }
            Self::Status(StatusCommand { section, format, tree, watch: true, .. }) => {
                return watch::watch(daemon, section.as_ref(), format.output, *tree, out).await;
            }
            Self::Status(command) => {
                let mut status = daemon.ask(&Method::GET, "/status", None).await?;
                if let Some(section) = &command.section {
                    let part = table::status_of(section.as_str(), &status);
                    status = part.map_err(|reason| Error::Pointless { reason })?;
                }
                if command.exit_code && !table::is_well(&status) {
                    exit = Exit::NotWell;
                }
                let output = command.format.output;
                let document =
                    command.section.as_ref().and_then(|section| status.pointer("/sections")?.get(section.as_str()));
                output.document(document.unwrap_or(&status)).unwrap_or_else(|| match output {
                    Output::Name => table::names(&status),
                    _ => table::status(&status, command.tree, output == Output::Wide),
                })
            }
            Self::Approve { section, list: true, order, .. } => {
                let output = order.format.output;
                let held = daemon.ask(&Method::GET, &format!("/held/{section}"), None).await?;
                output.document(&held).unwrap_or_else(|| match output {
                    Output::Name => table::held_names(&held),
                    _ => table::held(&held),
                })
            }
            Self::Approve { section, name, list: false, order } => {
                match approve(daemon, section, name.as_deref(), order).await? {
                    Approval::Given(answer) => answer,
                    Approval::Declined(exit) => return Ok(exit),
                }
            }
            Self::Resync(ResyncCommand { section, name, format, access }) => {
                order(daemon, section, *format, access, &named("resync", section, name.as_deref())).await?
            }
            Self::Explain(ExplainCommand { section, name, format: Format { output }, .. }) => {
                let path = named("explain", section, Some(name));
                let explained = daemon.ask(&Method::GET, &path, None).await?;
                output.document(&explained).unwrap_or_else(|| match output {
                    Output::Name => format!("{name}\n"),
                    _ => table::explained(&explained).unwrap_or_else(|| lines(&explained)),
                })
            }
            Self::Detach { section, local_gone, order: OrderOptions { consent: Yes { yes }, format, access } } => {
                if !yes {
                    let status = daemon.ask(&Method::GET, "/status?latest=true", None).await?;
                    let plan = table::detached(section.as_str(), *local_gone, &status);
                    let plan = plan.map_err(|reason| Error::Pointless { reason })?;
                    if let Err(refused) = consent(&plan).await {
                        return Ok(refused);
                    }
                }
                order(daemon, section, *format, access, &format!("/detach/{section}?local_gone={local_gone}")).await?
            }
            Self::Attach { section, format, access } => {
                order(daemon, section, *format, access, &format!("/attach/{section}")).await?
            }
        };
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Write)?;
        Ok(exit)
    }
}

/// What became of an approval.
enum Approval {
    /// The answer of the daemon, as it is printed.
    Given(String),
    /// Whoever was asked did not want it.
    Declined(Exit),
}

/// Approves what is held, if that is wanted once it was listed, and nothing that has come to be held since.
async fn approve(
    daemon: &impl Daemon,
    section: &SectionName,
    name: Option<&str>,
    OrderOptions { consent: Yes { yes }, format, access }: &OrderOptions,
) -> Result<Approval, Error> {
    let mut path = named("approve", section, name);
    if !yes {
        let held = daemon.ask(&Method::GET, &format!("/held/{section}"), None).await?;
        if name.is_some() && !table::is_approved_by_name(&held) {
            let reason = format!("section {section} approves all that it holds or nothing: leave the name out");
            return Err(Error::Pointless { reason });
        }
        match (table::approved(section.as_str(), name, &held), name) {
            (Some(plan), _) => {
                if let Err(refused) = consent(&plan).await {
                    return Ok(Approval::Declined(refused));
                }
            }
            // It may be held under another name, which was not shown.
            (None, Some(name)) => return Err(Error::NotHeld { section: section.to_string(), name: name.to_owned() }),
            // The daemon says that nothing is held.
            (None, None) => {}
        }
        if let Some(digest) = held.get("digest").and_then(Value::as_str) {
            path.push_str(if name.is_some() { "&digest=" } else { "?digest=" });
            path.push_str(digest);
        }
    }
    order(daemon, section, *format, access, &path).await.map(Approval::Given)
}

async fn order(
    daemon: &impl Daemon,
    section: &SectionName,
    format: Format,
    access: &Access,
    path: &str,
) -> Result<String, Error> {
    let asking = daemon.ask(&Method::POST, path, access.token_file.as_deref());
    let answer = telling(&format!("waiting for section {section}"), asking).await.map_err(Error::of_order)?;
    Ok(format.output.document(&answer).unwrap_or_else(|| match format.output {
        Output::Name => format!("{section}\n"),
        _ => table::done(section.as_str(), &answer),
    }))
}

/// A path of a section, with the name of an object in its query.
fn named(what: &str, section: &SectionName, name: Option<&str>) -> String {
    let query = name.map(|name| format!("?name={}", utf8_percent_encode(name, NON_ALPHANUMERIC))).unwrap_or_default();
    format!("/{what}/{section}{query}")
}

fn lines(document: &Value) -> String {
    let lines = document.get("lines").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    lines.fold(String::new(), |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_names_a_section_and_perhaps_an_object() {
        let section: SectionName = "syncsets".parse().expect("a name");
        assert_eq!(named("approve", &section, None), "/approve/syncsets");
        assert_eq!(named("approve", &section, Some("team-a/b&c")), "/approve/syncsets?name=team%2Da%2Fb%26c");
    }

    #[test]
    fn what_is_explained_in_lines_is_printed_line_by_line() {
        let told = lines(&json!({"lines": ["revision 3 deployed", "sent 2 times"]}));
        assert_eq!(told, "revision 3 deployed\nsent 2 times\n");
    }
}
