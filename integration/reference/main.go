// towline-reference keeps one kind of two clusters in step, as a Go controller does it the usual way: what `make bench
// AGAINST=go` measures Towline against.
//
// It does the plain part of resource sync: finalizer, local object, status, generation annotations, deletion. It knows
// no secrets, no namespaces of its own, no adoption and no guard against mass changes, so where it is the slower one,
// it is not because it does more. It is meant to be a fair opponent: informer caches on both clusters, no client-side
// rate limit, nothing requested that is already so, its own writes filtered out of its watches where they can be told,
// and the garbage collector as Go ships it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

type options struct {
	remoteKubeconfig, localKubeconfig string
	resource                          string
	workers                           int
	listen                            string
	mapping                           mapping
	propagation                       string
}

func main() {
	var o options
	flag.StringVar(&o.remoteKubeconfig, "remote-kubeconfig", "", "the cluster that has the truth about the spec")
	flag.StringVar(&o.localKubeconfig, "local-kubeconfig", "", "the cluster that has the truth about the status")
	flag.StringVar(&o.resource, "resource", "", "plural.version.group; plural.version of the core group")
	flag.StringVar(&o.mapping.remoteResourceSuffix, "remote-resource-suffix", "", "remote name = local name + this")
	flag.StringVar(&o.mapping.localNamespaceSuffix, "local-namespace-suffix", "", "local namespace = remote namespace + this")
	flag.StringVar(&o.mapping.namespacePrefix, "namespace-prefix", "", "other namespaces are ignored")
	flag.StringVar(&o.mapping.domain, "annotation-domain", "cloud.teleport.dev", "domain of annotations and finalizer")
	flag.StringVar(&o.mapping.finalizerName, "finalizer", "sync-local", "name part of the finalizer")
	flag.StringVar(&o.propagation, "propagation-policy", "Foreground", "Foreground, Background or Orphan")
	flag.IntVar(&o.workers, "workers", 10, "reconciles at the same time")
	flag.StringVar(&o.listen, "listen", "0", "address of /healthz and /readyz; 0: none")
	flag.Parse()
	log.SetLogger(zap.New())
	if err := run(signals.SetupSignalHandler(), o); err != nil {
		fmt.Fprintln(os.Stderr, "towline-reference:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	resource, err := parseResource(o.resource)
	if err != nil {
		return err
	}
	remote, err := newCluster(o.remoteKubeconfig)
	if err != nil {
		return fmt.Errorf("remote cluster: %w", err)
	}
	local, err := newCluster(o.localKubeconfig)
	if err != nil {
		return fmt.Errorf("local cluster: %w", err)
	}
	kind, err := local.GetRESTMapper().KindFor(resource)
	if err != nil {
		return fmt.Errorf("the kind of %s: %w", o.resource, err)
	}
	m, err := manager.New(local.GetConfig(), manager.Options{
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: o.listen,
	})
	if err != nil {
		return err
	}
	for _, c := range []cluster.Cluster{remote, local} {
		if err := m.Add(c); err != nil {
			return err
		}
	}
	reconciler := &reconciler{
		remote:      remote.GetClient(),
		local:       local.GetClient(),
		kind:        kind,
		mapping:     o.mapping,
		propagation: metav1.DeletionPropagation(o.propagation),
	}
	c, err := controller.New("sync", m, controller.Options{Reconciler: reconciler, MaxConcurrentReconciles: o.workers})
	if err != nil {
		return err
	}
	sources := []source.SyncingSource{
		source.Kind[client.Object](remote.GetCache(), object(kind), &handler.EnqueueRequestForObject{}, o.mapping.remoteChanges()),
		source.Kind[client.Object](local.GetCache(), object(kind), handler.EnqueueRequestsFromMapFunc(o.mapping.toRemote), localChanges()),
	}
	for _, s := range sources {
		if err := c.Watch(s); err != nil {
			return err
		}
	}
	if err := m.AddReadyzCheck("caches", synced(kind, remote.GetCache(), local.GetCache())); err != nil {
		return err
	}
	return m.Start(ctx)
}

func newCluster(kubeconfig string) (cluster.Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", cmp.Or(kubeconfig, "missing"))
	if err != nil {
		return nil, err
	}
	// No limit of the client's own: the API server's flow control is the one that counts.
	config.QPS = -1
	return cluster.New(config, func(o *cluster.Options) {
		// Nothing here reads managed fields, which are half of a small object.
		o.Cache.DefaultTransform = cache.TransformStripManagedFields()
		o.Client.Cache = &client.CacheOptions{Unstructured: true}
	})
}

func parseResource(text string) (schema.GroupVersionResource, error) {
	parts := strings.SplitN(text, ".", 3)
	if len(parts) < 2 {
		return schema.GroupVersionResource{}, fmt.Errorf("--resource %q: expected plural.version.group", text)
	}
	resource := schema.GroupVersionResource{Resource: parts[0], Version: parts[1]}
	if len(parts) == 3 {
		resource.Group = parts[2]
	}
	return resource, nil
}

// synced says yes when both caches have finished their first list.
func synced(kind schema.GroupVersionKind, caches ...cache.Cache) func(*http.Request) error {
	return func(r *http.Request) error {
		for _, c := range caches {
			informer, err := c.GetInformer(r.Context(), object(kind), cache.BlockUntilSynced(false))
			if err != nil {
				return err
			}
			if !informer.HasSynced() {
				return errors.New("a cache has not finished its first list")
			}
		}
		return nil
	}
}

func object(kind schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u
}
