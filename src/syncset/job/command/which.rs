//! The clusters that a command is about.

use crate::documents::Kind;
use crate::job::client::{Error, filters, path_of};

/// Which clusters.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(super) struct Which {
    #[command(flatten)]
    given: Given,
    /// Namespace of the cluster; with a selector or --all: of the clusters, all by default
    #[arg(short, long)]
    namespace: Option<String>,
}

/// One of these.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[group(required = true, multiple = false)]
struct Given {
    /// A cluster, with or without its namespace: NAMESPACE/NAME
    cluster: Option<String>,
    /// Label selector: each cluster that matches
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector)]
    selector: Option<String>,
    /// Every cluster
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// One, by its path in the API.
    One(String),
    /// Those of a list with these filters: a query that begins with `&`, or is empty.
    Many(String),
}

impl Which {
    pub(super) fn chosen(&self) -> Result<Chosen, Error> {
        match &self.given.cluster {
            Some(cluster) => Ok(Chosen::One(path_of(Kind::Cluster, self.namespace.as_deref(), cluster)?)),
            None => Ok(Chosen::Many(filters(self.namespace.as_deref(), self.given.selector.as_deref())?)),
        }
    }
}

/// A selector as it was typed. An empty one selects everything, and is most probably a variable that is not set.
fn selector(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("the selector is empty; all clusters are selected by --all".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;

    fn chosen(args: &[&str]) -> Option<Chosen> {
        let command = Which::augment_args(clap::Command::new("pause"));
        let matches = command.try_get_matches_from([&["pause"], args].concat()).ok()?;
        <Which as clap::FromArgMatches>::from_arg_matches(&matches).ok()?.chosen().ok()
    }

    #[test]
    fn a_command_is_about_one_cluster_or_about_those_of_a_selector_or_about_all() {
        let one = Some(Chosen::One("/v1/clusters/foo/west".to_owned()));
        assert_eq!(chosen(&["foo/west"]), one);
        assert_eq!(chosen(&["west", "-n", "foo"]), one);
        assert_eq!(chosen(&["-l", "env=prod"]), Some(Chosen::Many("&labelSelector=env%3Dprod".to_owned())));
        assert_eq!(
            chosen(&["-l", "!a", "-n", "foo"]),
            Some(Chosen::Many("&namespace=foo&labelSelector=%21a".to_owned()))
        );
        assert_eq!(chosen(&["--all", "-n", "foo"]), Some(Chosen::Many("&namespace=foo".to_owned())));
        assert_eq!(chosen(&["--all"]), Some(Chosen::Many(String::new())));
        for wrong in [
            &[][..],
            &["-n", "foo"],
            &["west"],
            &["foo/west", "-n", "foo"],
            &["foo/west", "--all"],
            &["foo/west", "-l", "a"],
            &["-l", ""],
            &["-l", "a", "--all"],
        ] {
            assert_eq!(chosen(wrong), None, "{wrong:?}");
        }
    }
}
