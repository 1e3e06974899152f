package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// reconciler brings one pair of objects in step. Reads come from the caches.
type reconciler struct {
	remote, local client.Client
	kind          schema.GroupVersionKind
	mapping       mapping
	propagation   metav1.DeletionPropagation
	// noted has by UID what noteGenerations wrote last. The cache may not have it yet when the event of the local write
	// asks for the next reconcile, and the same patch would be sent again.
	noted sync.Map
}

type generations struct{ remote, local int64 }

// Reconcile is asked for by the remote object's name.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, r.reconcile(ctx, request.NamespacedName)
}

func (r *reconciler) reconcile(ctx context.Context, key types.NamespacedName) error {
	localKey, ours := r.mapping.localKey(key)
	if !ours {
		return nil
	}
	remote := object(r.kind)
	if err := r.remote.Get(ctx, key, remote); err != nil {
		// The finalizer has held it for as long as there was something to do.
		return client.IgnoreNotFound(err)
	}
	local := object(r.kind)
	if err := r.local.Get(ctx, localKey, local); apierrors.IsNotFound(err) {
		local = nil
	} else if err != nil {
		return fmt.Errorf("read the local object: %w", err)
	}
	if remote.GetDeletionTimestamp() != nil {
		return r.remove(ctx, remote, local)
	}
	if !slices.Contains(remote.GetFinalizers(), r.mapping.finalizer()) {
		if err := r.setFinalizers(ctx, remote, append(remote.GetFinalizers(), r.mapping.finalizer())); err != nil {
			return fmt.Errorf("add the finalizer: %w", err)
		}
	}
	if local != nil {
		if err := r.copyStatus(ctx, remote, local); err != nil {
			return fmt.Errorf("write the remote status: %w", err)
		}
		if local.GetDeletionTimestamp() != nil {
			return nil // its end comes as an event, and it is made anew
		}
	}
	local, err := r.copyContent(ctx, remote, local, localKey)
	if err != nil {
		return fmt.Errorf("write the local object: %w", err)
	}
	if err := r.noteGenerations(ctx, remote, local); err != nil {
		return fmt.Errorf("note the generations: %w", err)
	}
	return nil
}

// remove deletes the local object, and lets go of the remote one when it is gone.
func (r *reconciler) remove(ctx context.Context, remote, local *unstructured.Unstructured) error {
	finalizers := remote.GetFinalizers()
	mine := slices.Index(finalizers, r.mapping.finalizer())
	if mine < 0 {
		return nil
	}
	if local != nil {
		if local.GetDeletionTimestamp() != nil {
			return nil
		}
		err := r.local.Delete(ctx, local, client.PropagationPolicy(r.propagation), client.Preconditions{UID: ptr.To(local.GetUID())})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the local object: %w", err)
		}
		return nil // its end comes as an event
	}
	if err := r.setFinalizers(ctx, remote, slices.Delete(finalizers, mine, mine+1)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer: %w", err)
	}
	r.noted.Delete(remote.GetUID())
	return nil
}

// copyStatus makes the remote's status equal to the local one.
func (r *reconciler) copyStatus(ctx context.Context, remote, local *unstructured.Unstructured) error {
	status, exists := local.Object["status"]
	if equality.Semantic.DeepEqual(remote.Object["status"], status) {
		return nil
	}
	if exists {
		remote.Object["status"] = runtime.DeepCopyJSONValue(status)
	} else {
		delete(remote.Object, "status")
	}
	return r.remote.Status().Update(ctx, remote)
}

// copyContent makes or updates the local object, and returns it as it is then. Labels and annotations are the remote's,
// and besides those what others put there.
func (r *reconciler) copyContent(
	ctx context.Context, remote, local *unstructured.Unstructured, key types.NamespacedName,
) (*unstructured.Unstructured, error) {
	labels, annotations := remote.GetLabels(), r.mapping.annotationsDown(remote)
	if local == nil {
		local = object(r.kind)
		local.SetNamespace(key.Namespace)
		local.SetName(key.Name)
		local.SetLabels(labels)
		local.SetAnnotations(annotations)
		setContent(local, remote)
		return local, r.local.Create(ctx, local)
	}
	if sameContent(remote, local) && contains(local.GetLabels(), labels) && contains(local.GetAnnotations(), annotations) {
		return local, nil
	}
	local.SetLabels(merged(local.GetLabels(), labels))
	local.SetAnnotations(merged(local.GetAnnotations(), annotations))
	setContent(local, remote)
	return local, r.local.Update(ctx, local)
}

// noteGenerations writes on the remote which generations are in step.
func (r *reconciler) noteGenerations(ctx context.Context, remote, local *unstructured.Unstructured) error {
	now := generations{remote: remote.GetGeneration(), local: local.GetGeneration()}
	notes := map[string]string{
		r.mapping.remoteGeneration(): strconv.FormatInt(now.remote, 10),
		r.mapping.localGeneration():  strconv.FormatInt(now.local, 10),
	}
	last, known := r.noted.Load(remote.GetUID())
	if known && last == now || contains(remote.GetAnnotations(), notes) {
		return nil
	}
	if err := r.patch(ctx, remote, map[string]any{"annotations": notes}); err != nil {
		return err
	}
	r.noted.Store(remote.GetUID(), now)
	return nil
}

// setFinalizers fails where the remote has changed since it was read.
func (r *reconciler) setFinalizers(ctx context.Context, remote *unstructured.Unstructured, finalizers []string) error {
	return r.patch(ctx, remote, map[string]any{"resourceVersion": remote.GetResourceVersion(), "finalizers": finalizers})
}

// patch merges this into the remote's metadata; remote is as it is then.
func (r *reconciler) patch(ctx context.Context, remote *unstructured.Unstructured, metadata map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	return r.remote.Patch(ctx, remote, client.RawPatch(types.MergePatchType, patch))
}

// isContent tells what of an object is taken down: everything but its type, metadata and status.
func isContent(field string) bool {
	return field != "apiVersion" && field != "kind" && field != "metadata" && field != "status"
}

func sameContent(a, b *unstructured.Unstructured) bool {
	covers := func(these, those map[string]any) bool {
		for field, value := range these {
			if isContent(field) && !equality.Semantic.DeepEqual(value, those[field]) {
				return false
			}
		}
		return true
	}
	return covers(a.Object, b.Object) && covers(b.Object, a.Object)
}

// setContent needs no copy: the remote is this reconcile's own.
func setContent(to, from *unstructured.Unstructured) {
	maps.DeleteFunc(to.Object, func(field string, _ any) bool { return isContent(field) })
	for field, value := range from.Object {
		if isContent(field) {
			to.Object[field] = value
		}
	}
}

func contains(all, some map[string]string) bool {
	for name, value := range some {
		if found, exists := all[name]; !exists || found != value {
			return false
		}
	}
	return true
}

func merged(below, above map[string]string) map[string]string {
	all := maps.Clone(below)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, above)
	return all
}
