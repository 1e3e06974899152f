//! The kinds that sections of the tests care for.

use integration::crds;
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;

fn demo(version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("demo.towline.dev", version, kind))
}

/// Namespaced, with a status subresource and defaults.
pub(crate) fn databases() -> ApiResource {
    demo("v1", "Database")
}

/// Cluster-scoped.
pub(crate) fn regions() -> ApiResource {
    demo("v1", "Region")
}

/// A status that is no subresource.
pub(crate) fn queues() -> ApiResource {
    demo("v1beta1", "Queue")
}

/// Anything goes.
pub(crate) fn documents() -> ApiResource {
    demo("v1", "Document")
}

/// Another schema on the edge than on the hub.
pub(crate) fn widgets() -> ApiResource {
    demo("v1", "Widget")
}

/// Like documents, for both roles on the edge.
pub(crate) fn leaflets() -> ApiResource {
    demo("v1", "Leaflet")
}

/// Built in, with controllers on both sides.
pub(crate) fn deployments() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment"))
}

/// Built in, without spec and status.
pub(crate) fn config_maps() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"))
}

pub(crate) fn leaflets_manifest() -> String {
    crds::DOCUMENTS.replace("document", "leaflet").replace("Document", "Leaflet")
}

/// Takes any size, prunes `status.detail`, and knows one `status.mood`.
pub(crate) fn widgets_of_the_hub() -> String {
    widgets_manifest(
        "size: {type: integer}, onlyOnTheHub: {type: string}",
        "phase: {type: string}, mood: {type: string, enum: [fine]}, defaulted: {type: string, default: by-the-hub}",
    )
}

/// Takes no size above 10, prunes `spec.onlyOnTheHub` and defaults `spec.colour`.
pub(crate) fn widgets_of_the_edge() -> String {
    widgets_manifest(
        "size: {type: integer, maximum: 10}, colour: {type: string, default: grey}",
        "phase: {type: string}, mood: {type: string}, detail: {type: string}",
    )
}

/// The kind with these properties of spec and status.
fn widgets_manifest(spec: &str, status: &str) -> String {
    format!(
        "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: widgets.demo.towline.dev}}
spec:
  group: demo.towline.dev
  scope: Namespaced
  names: {{kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {{status: {{}}}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {{type: object, properties: {{{spec}}}}}
            status: {{type: object, properties: {{{status}}}}}
"
    )
}
