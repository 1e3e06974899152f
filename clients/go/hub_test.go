package towline_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	towline "github.com/towline/towline/clients/go"
)

// namespace is the one that the tests use.
const namespace = "go-client"

// hub is a client of the hub that TOWLINE_HUB names.
func hub(t *testing.T) *towline.ClientWithResponses {
	t.Helper()
	url := os.Getenv("TOWLINE_HUB")
	if url == "" {
		t.Fatal("TOWLINE_HUB is not set: it is the URL of the hub that the tests use, such as http://127.0.0.1:7070")
	}
	authorized := func(_ context.Context, request *http.Request) error {
		if token := os.Getenv("TOWLINE_TOKEN"); token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		return nil
	}
	client, err := towline.NewClientWithResponses(url, towline.WithRequestEditorFn(authorized))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// within is the context of a test: longer than any of them takes on a busy machine.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func pointer[T any](value T) *T { return &value }

// create makes a cluster with a label, which is deleted at the end of the test.
func create(t *testing.T, client *towline.ClientWithResponses, name, environment string) towline.Cluster {
	t.Helper()
	ctx := within(t)
	created, err := client.CreateClusterWithResponse(ctx, nil, towline.ClusterCreate{
		Name: name, Namespace: namespace, Kubeconfig: "secret of " + name, Labels: &map[string]string{"env": environment},
	})
	if err != nil {
		t.Fatal(err)
	}
	if created.JSON201 == nil {
		t.Fatalf("%s: %s", created.Status(), created.Body)
	}
	t.Cleanup(func() { remove(t, client, name) })
	return *created.JSON201
}

// remove deletes a cluster, which may be gone.
func remove(t *testing.T, client *towline.ClientWithResponses, name string) {
	t.Helper()
	deleted, err := client.DeleteClusterWithResponse(within(t), namespace, name, nil, towline.Which{})
	if err != nil {
		t.Fatal(err)
	}
	if deleted.JSON200 == nil && deleted.ApplicationProblemJSON404 == nil {
		t.Fatalf("%s: %s", deleted.Status(), deleted.Body)
	}
}

func TestDocumentsAreCreatedReadChangedAndDeleted(t *testing.T) {
	client, ctx := hub(t), within(t)
	created := create(t, client, "walk", "test")
	if created.Name != "walk" || created.Generation != 1 || created.Labels["env"] != "test" {
		t.Fatalf("%+v", created)
	}

	got, err := client.GetClusterWithResponse(ctx, namespace, "walk", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.JSON200 == nil || got.JSON200.ID != created.ID {
		t.Fatalf("%s: %s", got.Status(), got.Body)
	}
	etag := got.HTTPResponse.Header.Get("ETag")
	if etag != fmt.Sprintf("%q", created.ResourceVersion) {
		t.Fatalf("the ETag is %s", etag)
	}
	known, err := client.GetClusterWithResponse(ctx, namespace, "walk", &towline.GetClusterParams{IfNoneMatch: &etag})
	if err != nil || known.StatusCode() != http.StatusNotModified {
		t.Fatalf("%v, %v", known, err)
	}

	merged, err := client.PatchClusterWithApplicationMergePatchPlusJSONBodyWithResponse(ctx, namespace, "walk", nil,
		map[string]any{"labels": map[string]any{"tier": "a", "env": nil}})
	if err != nil {
		t.Fatal(err)
	}
	if merged.JSON200 == nil || len(merged.JSON200.Labels) != 1 || merged.JSON200.Labels["tier"] != "a" {
		t.Fatalf("%s: %s", merged.Status(), merged.Body)
	}

	var paused any = true
	patched, err := client.PatchClusterWithApplicationJSONPatchPlusJSONBodyWithResponse(ctx, namespace, "walk", nil,
		[]towline.JSONPatchOperation{{Op: towline.Replace, Path: "/paused", Value: &paused}})
	if err != nil {
		t.Fatal(err)
	}
	if patched.JSON200 == nil || !*patched.JSON200.Paused || patched.JSON200.Generation != 2 {
		t.Fatalf("%s: %s", patched.Status(), patched.Body)
	}

	// The version of the first answer is old by now.
	replacement := towline.ClusterReplace{Paused: pointer(false), Labels: &map[string]string{"tier": "b"}}
	outdated, err := client.ReplaceClusterWithResponse(ctx, namespace, "walk", &towline.ReplaceClusterParams{IfMatch: &etag}, replacement)
	if err != nil {
		t.Fatal(err)
	}
	if problem := outdated.ApplicationProblemJSON412; problem == nil || problem.Type != "urn:towline:problem:precondition" {
		t.Fatalf("%s: %s", outdated.Status(), outdated.Body)
	}
	etag = patched.HTTPResponse.Header.Get("ETag")
	replaced, err := client.ReplaceClusterWithResponse(ctx, namespace, "walk", &towline.ReplaceClusterParams{IfMatch: &etag}, replacement)
	if err != nil {
		t.Fatal(err)
	}
	if replaced.JSON200 == nil || *replaced.JSON200.Paused || replaced.JSON200.Labels["tier"] != "b" {
		t.Fatalf("%s: %s", replaced.Status(), replaced.Body)
	}

	remove(t, client, "walk")
	gone, err := client.GetClusterWithResponse(ctx, namespace, "walk", nil)
	if err != nil || gone.ApplicationProblemJSON404 == nil {
		t.Fatalf("%v, %v", gone, err)
	}
}

func TestListsAreReadByLabelAndPageByPage(t *testing.T) {
	client, ctx := hub(t), within(t)
	for index := range 5 {
		create(t, client, fmt.Sprintf("page-%d", index), []string{"even", "odd"}[index%2])
	}
	parameters := towline.ListClustersParams{
		Namespace: pointer(namespace), LabelSelector: pointer("env in (even)"), Limit: pointer(2),
	}
	var names []string
	var version string
	for pages := 0; ; pages++ {
		page, err := client.ListClustersWithResponse(ctx, &parameters)
		if err != nil {
			t.Fatal(err)
		}
		if page.JSON200 == nil {
			t.Fatalf("%s: %s", page.Status(), page.Body)
		}
		if version != "" && page.JSON200.ResourceVersion != version {
			t.Fatalf("a page of version %s after one of %s", page.JSON200.ResourceVersion, version)
		}
		version = page.JSON200.ResourceVersion
		for _, cluster := range page.JSON200.Items {
			names = append(names, cluster.Name)
		}
		if page.JSON200.Continue == nil {
			if pages != 1 {
				t.Fatalf("%d pages", pages+1)
			}
			break
		}
		parameters.Continue = page.JSON200.Continue
	}
	if fmt.Sprint(names) != "[page-0 page-2 page-4]" {
		t.Fatalf("%v", names)
	}
}

func TestAProblemNamesEveryFault(t *testing.T) {
	client := hub(t)
	refused, err := client.CreateClusterWithResponse(within(t), nil, towline.ClusterCreate{
		Name: "Not_A_Name", Namespace: namespace, Kubeconfig: "k", Labels: &map[string]string{"a/b/c": "d"},
	})
	if err != nil {
		t.Fatal(err)
	}
	problem := refused.ApplicationProblemJSON422
	if problem == nil || problem.Type != "urn:towline:problem:invalid" || problem.Status != http.StatusUnprocessableEntity {
		t.Fatalf("%s: %s", refused.Status(), refused.Body)
	}
	pointers := map[string]bool{}
	for _, fault := range *problem.Errors {
		pointers[fault.Pointer] = true
	}
	if !pointers["/name"] || len(pointers) != 2 {
		t.Fatalf("%s", refused.Body)
	}
}

func TestAWatchTellsEachChangeInALine(t *testing.T) {
	client := hub(t)
	created := create(t, client, "watched", "watched")
	answer, err := client.ListClusters(within(t), &towline.ListClustersParams{
		Namespace: pointer(namespace), LabelSelector: pointer("env=watched"), Watch: pointer(true),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 8<<20)
	next := func() towline.ClusterEvent {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the watch ended: %v", lines.Err())
		}
		var event towline.ClusterEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		return event
	}
	cluster := func(event towline.ClusterEvent, kind towline.EventType) towline.Cluster {
		t.Helper()
		cluster, err := event.Object.AsCluster()
		if err != nil || event.Type != kind || cluster.ID != created.ID {
			t.Fatalf("%s instead of %s: %+v, %v", event.Type, kind, cluster, err)
		}
		return cluster
	}

	cluster(next(), towline.ADDED)
	event := next()
	bookmark, err := event.Object.AsBookmark()
	if err != nil || event.Type != towline.BOOKMARK || (*bookmark.Annotations)["k8s.io/initial-events-end"] != "true" {
		t.Fatalf("%+v, %v", event, err)
	}
	changes := func() towline.ClusterEvent {
		t.Helper()
		for {
			if event := next(); event.Type != towline.BOOKMARK {
				return event
			}
		}
	}
	patched, err := client.PatchClusterWithApplicationMergePatchPlusJSONBodyWithResponse(within(t), namespace, "watched", nil,
		map[string]any{"paused": true})
	if err != nil || patched.JSON200 == nil {
		t.Fatalf("%v, %v", patched, err)
	}
	if modified := cluster(changes(), towline.MODIFIED); modified.ResourceVersion != patched.JSON200.ResourceVersion {
		t.Fatalf("%+v", modified)
	}
	remove(t, client, "watched")
	cluster(changes(), towline.DELETED)
}

func TestDocumentsAreApplied(t *testing.T) {
	client := hub(t)
	t.Cleanup(func() { remove(t, client, "applied") })
	manifest := map[string]any{"kind": "Cluster", "namespace": namespace, "name": "applied", "kubeconfig": "k"}
	for _, expected := range []towline.AppliedResult{towline.Created, towline.Unchanged} {
		applied, err := client.ApplyDocumentsWithResponse(within(t), nil, manifest)
		if err != nil {
			t.Fatal(err)
		}
		if applied.JSON200 == nil || len(applied.JSON200.Items) != 1 || applied.JSON200.Items[0].Result != expected {
			t.Fatalf("%s: %s", applied.Status(), applied.Body)
		}
	}
}
