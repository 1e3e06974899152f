//! What is published of a row of the log. Pure.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use uuid::Uuid;

use crate::documents::kind::Kind;
use crate::documents::tail::Event;

/// Written to disk by queues that survive the broker.
pub(super) const PERSISTENT: u8 = 2;

/// A message for `towline.events`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) routing_key: String,
    pub(super) body: Vec<u8>,
    pub(super) properties: BasicProperties,
}

/// Which document a row is about.
pub(super) struct About<'a> {
    pub(super) kind: Kind,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) id: Uuid,
}

impl Message {
    /// An event of a document. None of a watch's own events, which no row of the log causes.
    pub(super) fn of(event: &Event, about: &About<'_>) -> Option<Self> {
        let (kind_of_change, object) = match event {
            Event::Added(object) => ("added", object),
            Event::Modified(object) => ("modified", object),
            Event::Deleted(object) => ("deleted", object),
            Event::Initial(_) | Event::Bookmark { .. } => return None,
        };
        let mut body = format!("{{\"type\":\"{}\",\"object\":", kind_of_change.to_uppercase()).into_bytes();
        body.extend_from_slice(object.json());
        body.push(b'}');
        let mut headers = FieldTable::default();
        let id = about.id.to_string();
        let kind = about.kind.name();
        for (name, value) in [("kind", kind), ("namespace", about.namespace), ("name", about.name), ("id", &id)] {
            headers.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        Some(Self {
            kind: about.kind,
            routing_key: format!("{}.{kind_of_change}", about.kind.plural()),
            body,
            properties: properties().with_message_id(object.version().to_string().into()).with_headers(headers),
        })
    }

    /// Consumers have to list this kind again.
    pub(super) fn relist(kind: Kind) -> Self {
        let mut headers = FieldTable::default();
        headers.insert("kind".into(), AMQPValue::LongString(kind.name().into()));
        Self {
            kind,
            routing_key: format!("{}.relist", kind.plural()),
            body: br#"{"type":"RELIST"}"#.to_vec(),
            properties: properties().with_headers(headers),
        }
    }
}

fn properties() -> BasicProperties {
    BasicProperties::default().with_content_type("application/json".into()).with_delivery_mode(PERSISTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::document::Document;
    use crate::documents::object::Object;

    fn object() -> Object {
        let row = r#"{"id": "6f1c0000-0000-4000-8000-000000000000", "data": {}, "kind": "clusters", "name": "cluster1",
            "labels": {}, "status": {}, "version": 58, "namespace": "foo", "finalizers": [], "generation": 1,
            "created_at": "2026-11-21T23:40:00+00:00", "deleted_at": null, "updated_at": "2026-11-21T23:40:00+00:00",
            "annotations": {}}"#;
        Object::of(&Document::from_row(row).expect("a row"))
    }

    fn about() -> About<'static> {
        let id = "6f1c0000-0000-4000-8000-000000000000".parse().expect("an id");
        About { kind: Kind::Cluster, namespace: "foo", name: "cluster1", id }
    }

    #[test]
    fn a_message_has_the_version_and_says_which_document_changed() {
        let message = Message::of(&Event::Modified(object()), &about()).expect("a message");
        assert_eq!(message.routing_key, "clusters.modified");
        assert_eq!(message.properties.message_id().as_ref().map(ToString::to_string).as_deref(), Some("58"));
        assert_eq!(*message.properties.delivery_mode(), Some(PERSISTENT));
        let body: serde_json::Value = serde_json::from_slice(&message.body).expect("JSON");
        assert_eq!((&body["type"], &body["object"]["resourceVersion"]), (&"MODIFIED".into(), &"58".into()));
        let headers = message.properties.headers().clone().expect("headers");
        let header = |name: &str| match headers.inner().get(name) {
            Some(AMQPValue::LongString(text)) => text.to_string(),
            other => format!("{other:?}"),
        };
        let found = ["kind", "namespace", "name", "id"].map(header);
        assert_eq!(found, ["Cluster", "foo", "cluster1", "6f1c0000-0000-4000-8000-000000000000"]);
    }

    #[test]
    fn each_change_has_a_routing_key_of_its_own() {
        let key = |event| Message::of(&event, &about()).map(|message| message.routing_key);
        assert_eq!(key(Event::Added(object())).as_deref(), Some("clusters.added"));
        assert_eq!(key(Event::Deleted(object())).as_deref(), Some("clusters.deleted"));
        assert_eq!(key(Event::Initial(object())), None);
        assert_eq!(Message::relist(Kind::SyncSet).routing_key, "syncsets.relist");
        assert_eq!(Message::relist(Kind::SyncSet).properties.message_id(), &None, "no consumer drops it");
    }
}
