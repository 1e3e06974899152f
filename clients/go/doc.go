// Package towline is a client of the REST API of a Towline hub: clusters, syncsets, selector syncsets and secrets as documents with
// optimistic concurrency, lists and watches.
//
// It is generated from the hub's OpenAPI document. [NewClientWithResponses] makes a client whose methods read the whole answer and
// decode it: into a field for each status, of which one is set. A problem has the type [Problem]; its Type says what is wrong.
//
//	client, err := towline.NewClientWithResponses("https://hub.example.com:7070", towline.WithRequestEditorFn(
//		func(_ context.Context, request *http.Request) error {
//			request.Header.Set("Authorization", "Bearer "+token)
//			return nil
//		}))
//	got, err := client.GetClusterWithResponse(ctx, "foo", "cluster1", nil)
//	if err == nil && got.JSON200 != nil {
//		fmt.Println(got.JSON200.ResourceVersion)
//	}
//
// A watch has no end that is worth waiting for. Use the method without WithResponse, set Watch in its parameters, and decode the
// lines of the body one after the other, for example into [ClusterEvent].
package towline
