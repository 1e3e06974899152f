//! The pod of a Deployment as a process of the test: what the kubelet makes of a pod's template. The volumes are filled from the cluster and
//! mounted where the template says, with the token of its service account; arguments and environment are the container's. Nothing is renewed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec, Secret, ServiceAccount, Volume};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use crate::kubelet::Kubelet;
use crate::room::Room;
use crate::{ControlPlane, Error, Towline, users};

/// Where a pod finds its account, unless it does not want to.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A token of a service account.
pub async fn token(client: &Client, namespace: &str, account: &str) -> Result<String, Error> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let issued = accounts.create_token_request(account, &PostParams::default(), &TokenRequest::default()).await;
    let issued = issued.map_err(Error::kubernetes(format!("issue a token for {account}")))?;
    Ok(issued.status.and_then(|status| status.token).unwrap_or_default())
}

/// Runs a pod of a Deployment whose image is Towline's, with this environment over its container's, and waits until its probes succeed.
pub async fn run(
    plane: &ControlPlane,
    namespace: &str,
    deployment: &str,
    env: &[(&str, &str)],
    limit: Duration,
) -> Result<Towline, Error> {
    let client = plane.client(users::ADMIN).await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let found = deployments.get(deployment).await.map_err(Error::kubernetes("read a Deployment"))?;
    let unlike = |detail: &str| Error::Manifest { what: deployment.to_owned(), detail: detail.to_owned() };
    let pod = found.spec.template.spec.ok_or_else(|| unlike("no pod"))?;
    let [container] = &pod.containers[..] else { return Err(unlike("more than one container")) };

    let room = Room::new("pod")?;
    for volume in pod.volumes.iter().flatten() {
        fill(&room.join("volumes").join(&volume.name), files(&client, namespace, volume).await?)?;
    }
    let mut mounts: Vec<(PathBuf, &str)> = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let volume = room.join("volumes").join(&mount.name);
        mounts.push((mount.sub_path.as_ref().map_or(volume.clone(), |path| volume.join(path)), &mount.mount_path));
    }
    if pod.automount_service_account_token != Some(false) {
        let directory = room.join("kube-api-access");
        fill(&directory, account(plane, &client, namespace, &pod).await?)?;
        mounts.push((directory, ACCOUNT));
    }

    let server = plane.address();
    let (host, port) = (server.ip().to_string(), server.port().to_string());
    let mut all = vec![("KUBERNETES_SERVICE_HOST", host.as_str()), ("KUBERNETES_SERVICE_PORT", port.as_str())];
    for variable in container.env.iter().flatten() {
        let value = variable.value.as_deref().ok_or_else(|| unlike("a variable without a value"))?;
        all.push((&variable.name, value));
    }
    all.extend(env);
    let args: Vec<&str> = container.args.iter().flatten().map(String::as_str).collect();
    let towline = Towline::in_container(room, &args, &all, &mounts).await?;
    for probe in [&container.liveness_probe, &container.readiness_probe] {
        let path = probe.as_ref().and_then(|probe| probe.http_get.as_ref()?.path.as_deref());
        towline.wait_well(path.ok_or_else(|| unlike("a probe without a path"))?, limit).await?;
    }
    Ok(towline)
}

/// Makes a pod of a Deployment on a node that is played, for a process that runs already: it has the labels of the template, and the ports that this
/// names, each with the process's own number.
pub async fn show(
    node: &Kubelet,
    client: &Client,
    (namespace, deployment): (&str, &str),
    name: &str,
    process: &[(&str, SocketAddr)],
) -> Result<(), Error> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let found = deployments.get(deployment).await.map_err(Error::kubernetes("read a Deployment"))?;
    let named: Vec<String> = found
        .spec
        .template
        .spec
        .iter()
        .flat_map(|pod| &pod.containers)
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| port.name.clone())
        .collect();
    let ports: Vec<_> = process.iter().filter(|(port, _)| named.iter().any(|name| name == port)).copied().collect();
    let labels = found.spec.template.metadata.and_then(|metadata| metadata.labels);
    node.run(&json!({"namespace": namespace, "name": name, "labels": labels}), &ports).await
}

/// The files of a volume by their names.
type Files = BTreeMap<String, Vec<u8>>;

async fn files(client: &Client, namespace: &str, volume: &Volume) -> Result<Files, Error> {
    let unread = |name: &str| Error::kubernetes(format!("read {name} for the volume {}", volume.name));
    if let Some(source) = &volume.config_map {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let map = maps.get(&source.name).await.map_err(unread(&source.name))?;
        return Ok(map.data.into_iter().flatten().map(|(name, text)| (name, text.into_bytes())).collect());
    }
    let name = volume.secret.as_ref().and_then(|source| source.secret_name.as_deref());
    let name = name.ok_or_else(|| Error::Manifest {
        what: format!("the volume {}", volume.name),
        detail: "neither a ConfigMap nor a Secret".to_owned(),
    })?;
    let secret = Api::<Secret>::namespaced(client.clone(), namespace).get(name).await.map_err(unread(name))?;
    Ok(secret.data.into_iter().flatten().map(|(name, content)| (name, content.0)).collect())
}

async fn account(plane: &ControlPlane, client: &Client, namespace: &str, pod: &PodSpec) -> Result<Files, Error> {
    let token = token(client, namespace, pod.service_account_name.as_deref().unwrap_or("default")).await?;
    let files = [("token", token.as_str()), ("ca.crt", plane.authority_pem()), ("namespace", namespace)];
    Ok(files.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).into())
}

fn fill(directory: &Path, files: Files) -> Result<(), Error> {
    std::fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
    for (name, content) in files {
        let path = directory.join(name);
        std::fs::write(&path, content).map_err(Error::file("write", &path))?;
    }
    Ok(())
}
