use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

fn patched(document: Value, patch: &Value) -> Result<Value, Problem> {
    let mut document = document;
    Operations::of(patch)?.apply(&mut document, |_, _| Ok(false)).map(|()| document)
}

fn parsed(patch: &str) -> Result<Operations, Problem> {
    Operations::from_json(patch.as_bytes())
}

#[test]
fn each_operation_does_what_rfc_6902_says() {
    let document = json!({"a": {"b": [1, 2]}, "c/d": "x", "~": 0});
    for (operations, expected) in [
        (json!([{"op": "add", "path": "/a/b/1", "value": 7}]), json!({"a": {"b": [1, 7, 2]}, "c/d": "x", "~": 0})),
        (json!([{"op": "add", "path": "/a/b/-", "value": 7}]), json!({"a": {"b": [1, 2, 7]}, "c/d": "x", "~": 0})),
        (json!([{"op": "add", "path": "/a", "value": 7}]), json!({"a": 7, "c/d": "x", "~": 0})),
        (json!([{"op": "remove", "path": "/c~1d"}]), json!({"a": {"b": [1, 2]}, "~": 0})),
        (json!([{"op": "replace", "path": "/~0", "value": null}]), json!({"a": {"b": [1, 2]}, "c/d": "x", "~": null})),
        (json!([{"op": "move", "from": "/a/b/0", "path": "/a/b/1"}]), json!({"a": {"b": [2, 1]}, "c/d": "x", "~": 0})),
        (json!([{"op": "copy", "from": "/a/b", "path": "/~0"}]), json!({"a": {"b": [1, 2]}, "c/d": "x", "~": [1, 2]})),
        (json!([{"op": "test", "path": "/a/b/0", "value": 1.0, "unknown": 1}]), document.clone()),
        (json!([{"op": "move", "from": "/a", "path": "/a"}]), document.clone()),
        (json!([]), document.clone()),
    ] {
        assert_eq!(patched(document.clone(), &operations), Ok(expected), "{operations}");
    }
}

#[test]
fn a_place_that_is_not_there_is_told() {
    for (operation, pointer) in [
        (json!({"op": "add", "path": "/x/y", "value": 1}), "/0/path"),
        (json!({"op": "add", "path": "/b/3", "value": 1}), "/0/path"),
        (json!({"op": "add", "path": "/b/01", "value": 1}), "/0/path"),
        (json!({"op": "remove", "path": "/x"}), "/0/path"),
        (json!({"op": "remove", "path": "/b/-"}), "/0/path"),
        (json!({"op": "replace", "path": "/a/x", "value": 1}), "/0/path"),
        (json!({"op": "move", "from": "/x", "path": "/y"}), "/0/from"),
        (json!({"op": "move", "from": "/b", "path": "/b/0"}), "/0/path"),
        (json!({"op": "copy", "from": "/b/2", "path": "/y"}), "/0/from"),
    ] {
        let problem = patched(json!({"a": 1, "b": [1, 2]}), &json!([operation])).expect_err("a wrong place");
        assert_eq!(problem.kind, ProblemKind::Invalid, "{operation}");
        assert_eq!(problem.faults[0].pointer, pointer, "{operation}");
    }
}

#[test]
fn a_failed_test_is_a_problem_of_its_own_and_shows_no_value() {
    for (path, value) in [("/a", json!("other")), ("/x", json!(null))] {
        let patch = json!([{"op": "test", "path": path, "value": value}]);
        let problem = patched(json!({"a": "canary"}), &patch).expect_err("a failed test");
        assert_eq!(problem.kind, ProblemKind::TestFailed);
        assert_eq!(problem.title, format!("the test at {path} failed (operation /0 of the patch)"));
    }
}

#[test]
fn every_fault_of_a_patch_is_told() {
    let problem = parsed(
        r#"[1, {}, {"op": "add", "path": ""}, {"op": "move", "path": "/a"}, {"op": "copy", "from": 7, "path": "/a"},
            {"op": "replace", "path": "a", "value": 1}, {"op": "test", "path": "/~2", "value": 1}]"#,
    );
    let pointers: Vec<_> = problem.expect_err("faults").faults.into_iter().map(|fault| fault.pointer).collect();
    let expected = ["/0", "/1/path", "/1/op", "/2/path", "/2/value", "/3/from", "/4/from", "/5/path", "/6/path"];
    assert_eq!(pointers, expected);
    assert_eq!(parsed("{}").expect_err("no list").faults[0].found, "an object");
    let operation = r#"{"op": "remove", "path": "/a"}"#;
    assert!(parsed(&format!("[{}]", vec![operation; MOST].join(","))).is_ok());
    let problem = parsed(&format!("[{}]", vec![operation; MOST + 1].join(","))).expect_err("too many");
    assert_eq!(problem.faults[0].found, "1001 operations");
}

#[test]
fn thirty_doublings_end_at_the_size_of_a_document() {
    let doubling = json!({"op": "copy", "from": "/a", "path": "/a/-"});
    let problem =
        patched(json!({"a": ["x".repeat(100)]}), &json!(vec![doubling; 30])).expect_err("too large or too deep");
    assert_eq!(problem.kind, ProblemKind::TooLarge);
    let sibling: Vec<_> = (0..30)
        .map(|index| json!({"op": "copy", "from": format!("/{index}"), "path": format!("/{}", index + 1)}))
        .collect();
    assert!(patched(json!({"0": "x"}), &json!(sibling)).is_ok());
}

#[test]
fn a_thousand_large_copies_over_each_other_are_refused() {
    let copy = json!({"op": "copy", "from": "/a", "path": "/b"});
    let large = json!({"a": "x".repeat(1 << 20)});
    assert!(patched(large.clone(), &json!(vec![copy.clone(); 60])).is_ok());
    assert_eq!(patched(large, &json!(vec![copy; 70])).expect_err("too much").kind, ProblemKind::TooLarge);
}

#[test]
fn a_thousand_removals_at_the_beginning_of_a_long_list_are_refused() {
    let remove = json!({"op": "remove", "path": "/a/0"});
    let long = json!({"a": vec![0; 100_000]});
    assert!(patched(long.clone(), &json!(vec![remove.clone(); 600])).is_ok());
    assert_eq!(patched(long, &json!(vec![remove; 900])).expect_err("too much").kind, ProblemKind::TooLarge);
}

#[test]
fn no_operation_makes_a_document_too_deep() {
    let mut path = "/a".to_owned();
    let mut operations = Vec::new();
    for _ in 0..200 {
        operations.push(json!({"op": "add", "path": path, "value": {"a": {}}}));
        path.push_str("/a/a");
    }
    let problem = patched(json!({}), &json!(operations)).expect_err("too deep");
    assert_eq!((problem.kind, problem.faults[0].pointer.as_str()), (ProblemKind::Invalid, "/49/path"));
    let problem = patched(
        json!({"a": 1}),
        &json!((0..101).map(|_| json!({"op": "move", "from": "/a", "path": "/a"})).collect::<Vec<_>>()),
    );
    assert!(problem.is_ok());
}

#[test]
fn debug_shows_paths_alone() {
    let operations = parsed(r#"[{"op": "add", "path": "/kubeconfig", "value": "canary"}]"#).expect("a patch");
    assert_eq!(format!("{operations:?}"), r#"["add /kubeconfig"]"#);
}

fn json_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        "[a-c\"\n]{0,2}".prop_map(Value::from),
    ];
    scalar.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map("[a-c]", json_value(), 0..4).prop_map(|map| map.into_iter().collect())
}

fn operation_on(names: &'static str) -> impl Strategy<Value = Value> {
    let path = move || {
        prop::collection::vec(names.prop_map(|name: String| format!("/{name}")), 1..4).prop_map(|parts| parts.concat())
    };
    prop_oneof![
        (path(), json_value()).prop_map(|(path, value)| json!({"op": "add", "path": path, "value": value})),
        (path(), json_value()).prop_map(|(path, value)| json!({"op": "replace", "path": path, "value": value})),
        path().prop_map(|path| json!({"op": "remove", "path": path})),
        (path(), path()).prop_map(|(from, path)| json!({"op": "copy", "from": from, "path": path})),
        (path(), path()).prop_map(|(from, path)| json!({"op": "move", "from": from, "path": path})),
    ]
}

proptest! {
    #[test]
    fn the_length_is_never_counted_too_low(
        document in object(),
        operations in prop::collection::vec(operation_on("[a-c0-1]"), 0..6),
    ) {
        let mut document = Value::Object(document);
        let operations = Operations::of(&Value::from(operations)).expect("a patch");
        let Extent { bytes, built, .. } = extent(&document);
        let mut size = Size { bytes, built, work: 0 };
        for operation in &operations.0 {
            size.add(&document, operation, "/0").expect("it is small");
            if apply(&mut document, operation, "/0").is_err() {
                break;
            }
            let exact = extent(&document);
            prop_assert!(size.bytes >= exact.bytes, "{} {exact:?}", size.bytes);
        }
    }
}

#[test]
fn copies_of_many_small_maps_are_too_large() {
    let map = json!({"a": 1});
    let each = body::extent(&Value::Array(vec![map.clone()])).built;
    let document = json!({"list": vec![map; LARGEST_BUILT / each / 3]});
    let copies = |count: usize| {
        let copies = (0..count).map(|copy| json!({"op": "copy", "from": "/list", "path": format!("/copy{copy}")}));
        Operations::of(&Value::from(copies.collect::<Vec<_>>())).expect("a patch")
    };
    let apply = |operations: Operations| operations.apply(&mut document.clone(), |_, _| Ok(false));
    assert_eq!(apply(copies(1)), Ok(()));
    assert_eq!(apply(copies(3)), Err(too_many_parts()));
}

#[test]
fn a_patch_may_change_a_field_at_it_below_it_and_above_it() {
    let may = |operation: Value| Operations::of(&json!([operation])).expect("a patch").may_change(["spec", "patches"]);
    for path in ["/spec", "/spec/patches", "/spec/patches/-"] {
        assert!(may(json!({"op": "add", "path": path, "value": 1})), "{path}");
        assert!(may(json!({"op": "copy", "from": "/status", "path": path})), "{path}");
    }
    assert!(!may(json!({"op": "add", "path": "/spec/resources/patches", "value": 1})));
    assert!(!may(json!({"op": "replace", "path": "/labels", "value": {}})));
    assert!(!may(json!({"op": "remove", "path": "/spec/patches"})));
}
