//! An edge's own controllers: they know nothing of Towline, and act on what lies in their cluster.
//!
//! One says where a database answers, the other makes the secret with which it is used. What they would really start is
//! left out.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;

/// The secret that [`Duty::IssueCredentials`] makes, as the roles of `deploy/` have it.
pub(crate) const CREDENTIALS: &str = "database-credentials";
/// Databases with this label get one.
pub(crate) const WANTS_CREDENTIALS: &str = "demo.towline.dev/wants-credentials";
/// Field manager of both.
const MANAGER: &str = "database-controller";
/// After an action that failed, for example because the API server is down.
const RETRY: Duration = Duration::from_millis(100);
/// A watch that failed is begun anew after [`RETRY`], and then after twice as long each time, up to this.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Duty {
    /// It sets the status of every database.
    RunDatabases,
    /// It makes the secret of every database that wants one.
    IssueCredentials,
}

/// The delays of a watch. kube's own take half a minute to notice that an API server is back.
struct Soon(Duration);

impl Iterator for Soon {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = self.0;
        self.0 = (delay * 2).min(LONGEST_RETRY);
        Some(delay)
    }
}

impl Backoff for Soon {
    fn reset(&mut self) {
        self.0 = RETRY;
    }
}

pub(crate) struct Controller {
    duty: Duty,
    client: Client,
    kind: ApiResource,
    /// When the last write was sent.
    sent: watch::Sender<Instant>,
}

impl Controller {
    /// It begins with [`Controller::run`].
    pub(crate) fn new(duty: Duty, client: Client, kind: ApiResource) -> Self {
        Self { duty, client, kind, sent: watch::Sender::new(Instant::now()) }
    }

    /// When it sent its last write; of one that has written nothing yet, when it was made.
    pub(crate) fn sent(&self) -> watch::Receiver<Instant> {
        self.sent.subscribe()
    }

    /// Acts on every database that is there, is new or changes, until it has succeeded; for ever.
    pub(crate) async fn run(self) {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.kind);
        let changes = watcher(api, watcher::Config::default()).backoff(Soon(RETRY)).applied_objects();
        let mut changes = pin!(changes);
        while let Some(change) = changes.next().await {
            // The watcher begins anew by itself, with back-off.
            let Ok(database) = change else { continue };
            while let Err(failure) = self.act(&database).await {
                if is_settled(&failure) {
                    break;
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    async fn act(&self, database: &DynamicObject) -> kube::Result<()> {
        if database.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        match self.duty {
            Duty::RunDatabases => self.set_status(database).await,
            Duty::IssueCredentials => self.issue_credentials(database).await,
        }
    }

    async fn set_status(&self, database: &DynamicObject) -> kube::Result<()> {
        let (name, namespace) = (database.name_any(), database.namespace().unwrap_or_default());
        let wanted = json!({"phase": "Ready", "endpoint": format!("{name}.{namespace}.svc:5432")});
        if database.data.get("status") == Some(&wanted) {
            return Ok(());
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &namespace, &self.kind);
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        self.sent.send_replace(Instant::now());
        api.patch_status(&name, &params, &Patch::Merge(json!({"status": wanted}))).await.map(|_| ())
    }

    async fn issue_credentials(&self, database: &DynamicObject) -> kube::Result<()> {
        if !database.labels().contains_key(WANTS_CREDENTIALS) {
            return Ok(());
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &database.namespace().unwrap_or_default());
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        self.sent.send_replace(Instant::now());
        api.create(&params, &credentials(database, &self.kind)).await.map(|_| ())
    }
}

/// The secret belongs to the database, so it goes with it.
fn credentials(database: &DynamicObject, kind: &ApiResource) -> Secret {
    let uid = database.uid().unwrap_or_default();
    let text = |text: String| ByteString(text.into_bytes());
    Secret {
        metadata: ObjectMeta {
            name: Some(CREDENTIALS.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: kind.api_version.clone(),
                kind: kind.kind.clone(),
                name: database.name_any(),
                uid: uid.clone(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([
            ("username".to_owned(), text(format!("{}-{}", database.name_any(), uid.get(..4).unwrap_or_default()))),
            // Nobody's secret: it opens nothing.
            ("password".to_owned(), text(uid)),
        ])),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// The object is gone, or what was to be made is there.
fn is_settled(failure: &kube::Error) -> bool {
    matches!(failure, kube::Error::Api(status) if [404, 409].contains(&status.code))
}

/// What the status says, for people.
pub(crate) fn told(status: Option<&Value>) -> String {
    let field = |name: &str| status.and_then(|status| status.get(name)).and_then(Value::as_str).unwrap_or("nothing");
    format!("{} at {}", field("phase"), field("endpoint"))
}
