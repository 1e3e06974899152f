//! The proxy between this process and a cluster, chosen as kubectl does.
//!
//! A kubeconfig's `proxy-url` counts for its cluster whatever the environment says; without one the environment does
//! (`http::proxy`). kube, as it is built here, reads `HTTPS_PROXY` and knows no `NO_PROXY`, and with its own support for
//! proxies it would hold `NO_PROXY` against the proxy's name in the place of the server's. So what it found counts only where
//! the kubeconfig itself names a proxy. A proxy that is spoken to through TLS proves who it is by the cluster's certificate
//! authority.

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
