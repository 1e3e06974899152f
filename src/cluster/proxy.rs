//! The proxy between this process and a cluster, chosen as kubectl does.
//!
//! A kubeconfig's `proxy-url` takes precedence over the environment (`http::proxy`). kube, as it is built here, reads
//! `HTTPS_PROXY` and ignores `NO_PROXY`; with its own support for proxies it would compare `NO_PROXY` with the name of the
//! proxy instead of the server's. So the proxy that kube finds is used only if the kubeconfig itself names one. A proxy
//! that is reached through TLS is verified by the cluster's certificate authority.

use kube::config::{KubeConfigOptions, Kubeconfig};

/// Whether the chosen context's cluster names a proxy of its own.
pub(super) fn is_named(kubeconfig: &Kubeconfig, options: &KubeConfigOptions) -> bool {
    let chosen = options.context.as_ref().or(kubeconfig.current_context.as_ref());
    let context = kubeconfig.contexts.iter().find(|named| Some(&named.name) == chosen);
    let name = context.and_then(|named| named.context.as_ref()).map(|context| &context.cluster);
    let cluster = kubeconfig.clusters.iter().find(|named| Some(&named.name) == name);
    let url = cluster.and_then(|named| named.cluster.as_ref()).and_then(|cluster| cluster.proxy_url.as_ref());
    url.is_some_and(|url| !url.is_empty())
}

#[cfg(test)]
mod tests;
