//! The requests of a first apply in a plain loop: what the API servers let through.

use std::time::Instant;

use futures::future::try_join_all;
use http::header::{ACCEPT, CONTENT_TYPE};
use integration::{Error, users};
use kube::Client;
use serde_json::{Value, json};

use super::documents::{self, MAPS};
use super::measured::{Measured, Phase};
use super::world::World;

/// Clusters at once: as many as a worker has.
const AT_ONCE: usize = 64;
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// For each cluster, objects of other names and of the same size: a GET and an apply for each.
pub(super) async fn first_apply(world: &World) -> Result<Measured, Error> {
    let mut clients = Vec::new();
    for edge in &world.edges {
        clients.push(edge.client(users::ADMIN).await?);
    }
    let phase = Phase::begin(world, "the same requests in a plain loop").await?;
    let share = async |first: usize| {
        for number in (first..world.clusters).step_by(AT_ONCE) {
            let Some(client) = clients.get(number % clients.len().max(1)) else { continue };
            cluster(client, number).await?;
        }
        Ok::<_, Error>(())
    };
    try_join_all((0..AT_ONCE).map(share)).await?;
    let ended = Instant::now();
    phase.ended(Some(ended), (MAPS + 1) * world.clusters).await
}

async fn cluster(client: &Client, number: usize) -> Result<(), Error> {
    let namespace = documents::name(number);
    let maps = (0..MAPS).map(|map| {
        (
            format!("/api/v1/namespaces/{namespace}/configmaps/plain-{map}"),
            documents::plain_map(&format!("plain-{map}")),
        )
    });
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "plain"}, "data": {"value": "MDAw"}});
    let secret = ("/api/v1/namespaces/default/secrets/plain".to_owned(), secret);
    let objects: Vec<(String, Value)> = maps.chain([secret]).collect();
    for (path, _) in &objects {
        match send(client, http::Request::get(path), Vec::new()).await {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(Error::kubernetes(format!("GET {path}"))(error)),
        }
    }
    for (path, object) in &objects {
        let uri = format!("{path}?fieldManager=plain&force=true&fieldValidation=Ignore");
        let request = http::Request::patch(uri).header(CONTENT_TYPE, "application/apply-patch+yaml");
        send(client, request, object.to_string().into_bytes())
            .await
            .map_err(Error::kubernetes(format!("PATCH {path}")))?;
    }
    Ok(())
}

async fn send(client: &Client, request: http::request::Builder, body: Vec<u8>) -> Result<(), kube::Error> {
    let request = request.header(ACCEPT, METADATA).body(body).map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(drop)
}
