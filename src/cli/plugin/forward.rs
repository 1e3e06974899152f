//! The API server: lists the pods, and carries requests to their admin servers.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Portforwarder};
use kube::{Api, Client};
use serde_json::Value;
use tokio::io::DuplexStream;

use super::super::client::{self, AdminUrl, converse, request};
use super::super::release::{Error, Release};
use super::pods::{Replica, Unclear, choose, replicas_of};
use crate::cluster::{Cluster, context_of, full_text};
use crate::config::text::one_line;
use crate::config::{ClusterAccess, ClusterConfig, ClusterName};
use crate::job::check::connect;

/// The label of all pods of the chart.
const PODS: &str = "app.kubernetes.io/name=towline";
/// Deadline for a forward: the API server, the node and the pod are asked in turn.
const LONGEST_OPEN: Duration = Duration::from_secs(5);

/// Which pods a command is for.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct PodChoice {
    /// Kubeconfig file
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Namespace of the release
    #[arg(id = "of_release", short = 'n', long = "namespace", global = true, value_name = "NAME")]
    pub(super) namespace: Option<String>,
    /// Look for the release in all namespaces
    #[arg(short = 'A', long, global = true)]
    pub(super) all_namespaces: bool,
    /// The release, where there are several
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) release: Option<String>,
}

/// The pods that were chosen.
pub(super) struct Pods {
    cluster: Cluster,
    /// All of them, if it is none.
    namespace: Option<String>,
    release: Option<String>,
    /// The release that was found first: all requests of a command go to the same one.
    chosen: OnceLock<Release>,
    /// Whether the user or the kubeconfig named the namespace. In any other one, somebody who may label pods could receive what is sent to them.
    pub(super) is_named: bool,
}

/// A stream to a port of a pod. It ends when this is dropped.
pub(super) struct Forwarded {
    pub(super) stream: DuplexStream,
    /// What the node says if it can't reach the port.
    pub(super) fault: BoxFuture<'static, Option<String>>,
    _open: Open,
}

struct Open(Portforwarder);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pods {
    pub(super) async fn of(choice: &PodChoice) -> Result<Self, Error> {
        let PodChoice { kubeconfig, context, namespace, all_namespaces, release } = choice.clone();
        // Somebody may make another context the current one while this runs.
        let resolved = context_of(kubeconfig.as_ref(), context.as_deref());
        let context = context.or_else(|| resolved.as_ref().map(|resolved| resolved.name.clone()));
        let named = namespace.or_else(|| resolved?.namespace);
        let config = ClusterConfig::new(ClusterAccess::Kubectl { kubeconfig, context });
        let cluster = Cluster::new(ClusterName::default(), &config);
        connect(&cluster, &config).await.map_err(Error::Cluster)?;
        let is_named = named.is_some() && !all_namespaces;
        let mut pods = Self { cluster, namespace: None, release, chosen: OnceLock::new(), is_named };
        if !all_namespaces {
            let of_client = pods.client()?.default_namespace().to_owned();
            pods.namespace = Some(named.unwrap_or(of_client));
        }
        Ok(pods)
    }

    fn client(&self) -> Result<Client, Error> {
        let session = self.cluster.session().ok_or_else(|| Error::Cluster("no credentials".to_owned()))?;
        Ok(session.connection.client())
    }

    fn whereabouts(&self) -> String {
        self.namespace.as_ref().map_or_else(|| "in any namespace".into(), |name| format!("in namespace {name}"))
    }

    /// The replicas as they are now.
    pub(super) async fn replicas(&self) -> Result<Vec<Replica>, Error> {
        let client = self.client()?;
        let api: Api<Pod> = match &self.namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let found = api.list(&ListParams::default().labels(PODS)).await.map_err(|error| Error::List(text(&error)))?;
        let chosen = if let Some(chosen) = self.chosen.get() {
            chosen
        } else {
            let first = choose(&found.items, self.release.as_deref()).map_err(|unclear| self.unclear(unclear))?;
            self.chosen.get_or_init(|| first)
        };
        replicas_of(&found.items, chosen).map_err(|unclear| self.unclear(unclear))
    }

    fn unclear(&self, unclear: Unclear) -> Error {
        match unclear {
            Unclear::Several(releases) => Error::SeveralReleases { place: self.whereabouts(), releases },
            Unclear::NotThere(there) => {
                let named = self.release.clone().or_else(|| self.chosen.get().map(|chosen| chosen.name.clone()));
                Error::NoPods { place: self.whereabouts(), release: named.filter(|_| !there.is_empty()), there }
            }
        }
    }

    /// Connects to a port of a replica.
    pub(super) async fn open(&self, replica: &Replica, port: &Result<u16, String>) -> Result<Forwarded, Error> {
        let port = *port.as_ref().map_err(|fault| unreached(replica, fault))?;
        let api: Api<Pod> = Api::namespaced(self.client()?, &replica.namespace);
        let opened = tokio::time::timeout(LONGEST_OPEN, api.portforward(&replica.name, &[port])).await;
        let late = |_| {
            let waited = humantime::format_duration(LONGEST_OPEN);
            unreached(replica, &format!("no connection to its node within {waited}"))
        };
        let mut forwarder = opened.map_err(late)?.map_err(|error| unreached(replica, &text(&error)))?;
        let (stream, fault) = (forwarder.take_stream(port), forwarder.take_error(port));
        let stream = stream.ok_or_else(|| unreached(replica, "no stream to its port"))?;
        let fault = fault.map_or_else(|| std::future::ready(None).boxed(), FutureExt::boxed);
        Ok(Forwarded { stream, fault, _open: Open(forwarder) })
    }

    /// Sends one request to a replica.
    pub(super) async fn ask(
        &self,
        replica: &Replica,
        within: Duration,
        method: &Method,
        path: &str,
        token_file: Option<&Path>,
    ) -> Result<Value, client::Error> {
        // In its pod the daemon is where it would be on this machine.
        let request = request(&AdminUrl::default(), method, path, token_file).await?;
        let Forwarded { stream, fault, _open } = self.open(replica, &replica.admin).await?;
        tokio::select! {
            biased;
            Some(fault) = fault => Err(if *method == Method::GET {
                unreached(replica, &fault)
            } else {
                Error::Interrupted { replica: replica.name.clone(), reason: one_line(fault.trim()) }
            }
            .into()),
            answer = converse(stream, request, within) => answer,
        }
    }
}

fn unreached(replica: &Replica, reason: &str) -> Error {
    Error::Unreached { replica: replica.name.clone(), reason: one_line(reason.trim()) }
}

/// The API server's own words, if there are any.
fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => one_line(&status.message),
        other => one_line(&full_text(other)),
    }
}
