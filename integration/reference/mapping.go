package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// mapping says which objects belong together, and how the marks on them are called.
type mapping struct {
	remoteResourceSuffix, localNamespaceSuffix, namespacePrefix string
	domain, finalizerName                                       string
}

func (m mapping) finalizer() string        { return m.domain + "/" + m.finalizerName }
func (m mapping) remoteGeneration() string { return m.domain + "/sync-remote-generation" }
func (m mapping) localGeneration() string  { return m.domain + "/sync-local-generation" }

// localKey is where the local object of a remote one is; false where the remote one is none of ours.
func (m mapping) localKey(remote types.NamespacedName) (types.NamespacedName, bool) {
	name, ours := strings.CutSuffix(remote.Name, m.remoteResourceSuffix)
	if remote.Namespace == "" {
		return types.NamespacedName{Name: name}, ours
	}
	ours = ours && strings.HasPrefix(remote.Namespace, m.namespacePrefix)
	return types.NamespacedName{Namespace: remote.Namespace + m.localNamespaceSuffix, Name: name}, ours
}

// toRemote maps an event of a local object to its remote one.
func (m mapping) toRemote(_ context.Context, local client.Object) []reconcile.Request {
	remote := types.NamespacedName{Name: local.GetName() + m.remoteResourceSuffix}
	if local.GetNamespace() != "" {
		namespace, ours := strings.CutSuffix(local.GetNamespace(), m.localNamespaceSuffix)
		if !ours || !strings.HasPrefix(namespace, m.namespacePrefix) {
			return nil
		}
		remote.Namespace = namespace
	}
	return []reconcile.Request{{NamespacedName: remote}}
}

// annotationsDown are the remote's annotations that the local object gets.
func (m mapping) annotationsDown(remote *unstructured.Unstructured) map[string]string {
	annotations := remote.GetAnnotations() // a copy
	maps.DeleteFunc(annotations, func(name, _ string) bool {
		return name == corev1.LastAppliedConfigAnnotation || strings.HasPrefix(name, m.domain+"/")
	})
	return annotations
}

// remoteChanges lets through what asks for work. The reconciler's own writes on the remote (finalizer, annotations,
// status) ask for none.
func (m mapping) remoteChanges() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*unstructured.Unstructured), e.ObjectNew.(*unstructured.Unstructured)
			return before.GetGeneration() != after.GetGeneration() ||
				(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil) ||
				lost(before.GetFinalizers(), after.GetFinalizers(), m.finalizer()) ||
				!maps.Equal(before.GetLabels(), after.GetLabels()) ||
				!maps.Equal(m.annotationsDown(before), m.annotationsDown(after))
		},
		// The finalizer came off when there was nothing left to do.
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// localChanges lets through all but events that repeat what is known.
func localChanges() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*unstructured.Unstructured), e.ObjectNew.(*unstructured.Unstructured)
			return before.GetGeneration() != after.GetGeneration() ||
				(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil) ||
				!maps.Equal(before.GetLabels(), after.GetLabels()) ||
				!maps.Equal(before.GetAnnotations(), after.GetAnnotations()) ||
				!equality.Semantic.DeepEqual(before.Object["status"], after.Object["status"])
		},
	}
}

func lost(before, after []string, finalizer string) bool {
	return slices.Contains(before, finalizer) && !slices.Contains(after, finalizer)
}
