use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cel::common::types::{CelList, CelMap, CelMapKey, CelString};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{Context, Env};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn holds(text: &str, object: &Value) -> Result<bool, String> {
    let expression = Expression::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    Facts::of(object).unwrap_or_else(|_| panic!("{object} is too large")).hold(&expression)
}

#[test]
fn expressions_are_asked_about_metadata_spec_and_status() {
    // As Flux publishes them.
    let ready = "status.conditions.filter(e, e.type == 'Ready').all(e, e.status == 'True')";
    let not_ready = "status.conditions.filter(e, e.type == 'Ready').all(e, e.status == 'False')";
    let behind = "has(status.observedGeneration) && status.observedGeneration != metadata.generation";
    let conditions = |status: &str| json!({"status": {"conditions": [{"type": "Synced", "status": "True"}, {"type": "Ready", "status": status}]}});
    let database = json!({"metadata": {"name": "db", "generation": 3, "labels": {"a/b": "c"}}, "spec": {"replicas": 3, "size": 2.5},
        "status": {"phase": "ready", "observedGeneration": 3, "readyReplicas": 2, "hosts": ["db-0", "db-1"], "none": null,
            "shards": [{"generation": 3, "ready": true}, {"generation": 2, "ready": false}], "large": u64::MAX, "count": "7"}});
    for (text, object, expected) in [
        (ready, &conditions("True"), true),
        (ready, &conditions("False"), false),
        (not_ready, &conditions("False"), true),
        (not_ready, &conditions("Unknown"), false),
        (ready, &json!({"status": {}}), false),
        (ready, &json!({"metadata": {}}), false),
        (behind, &database, false),
        (behind, &json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1}}), true),
        (behind, &json!({"metadata": {"generation": 2}}), false),
        ("has(status.none) || has(status.other)", &database, false),
        ("!has(status.conditions) && has(status.phase)", &database, true),
        ("status.phase in ['ready', 'degraded'] && !('db-7' in status.hosts)", &database, true),
        (
            "status.phase.startsWith('re') && status.phase.endsWith('dy') && status.phase.contains('ea')",
            &database,
            true,
        ),
        ("metadata.labels['a/b'] == \"c\" && status.hosts[1] == 'db-1'", &database, true),
        ("status.hosts[2] == 'db-2'", &database, false),
        ("status.readyReplicas >= spec.replicas - 1 && status.readyReplicas * 2 > spec.replicas", &database, true),
        ("spec.size > 2 && spec.size / 2.0 < 1.5 && spec.replicas % 2 == 1 && -spec.replicas == -3", &database, true),
        ("size(status.hosts) == 2 && status.hosts.size() == 2 && size(status.phase) == 5", &database, true),
        ("int(status.count) == 7 && double(status.count) > 6.5", &database, true),
        ("status.large > 9223372036854775807", &database, true),
        ("status.shards.exists(e, e.generation == metadata.generation && e.ready)", &database, true),
        ("status.shards.all(e, e.generation == metadata.generation)", &database, false),
        ("status.shards.exists_one(e, e.ready)", &database, true),
        ("status.shards.all(e, e.ready || has(status.phase))", &database, true),
        ("status.shards.exists(e, e.missing == 1)", &database, false),
        ("spec.replicas > 5 ? status.phase == 'x' : status.phase == 'ready'", &database, true),
        ("metadata.labels.exists(key, key.startsWith('a/'))", &database, true),
        ("status.other.deeper.still == 1", &database, false),
        ("true // as it is", &database, true),
    ] {
        assert_eq!(holds(text, object), Ok(expected), "{text}");
    }
}

#[test]
fn what_is_neither_true_nor_false_is_told_by_its_types_alone() {
    let object = json!({"metadata": {}, "spec": {"replicas": 3, "secret": "canary-7"}, "status": {"list": [1, 2], "most": i64::MAX}});
    for (text, expected) in [
        ("status", "the result is of the type map, and not a bool"),
        ("spec.secret", "the result is of the type string, and not a bool"),
        ("size(spec.secret)", "the result is of the type int, and not a bool"),
        ("spec.secret > 3", "found no matching overload for '_>_' applied to '(string, int)'"),
        ("spec.secret.key == 3", "found no matching overload for '_._' applied to '(string, string)'"),
        ("spec.secret && true", "found no matching overload for '_&&_' applied to '(string, bool)'"),
        ("spec.secret.exists(e, e == 1)", "found the type string, and not iterable"),
        ("spec.secret - 1 == 2", "types that don't go together"),
        ("spec.replicas / 0 == 1", "division by zero"),
        ("spec.replicas % 0 == 1", "division by zero"),
        ("status.most * 2 > 1", "a number that is too large"),
    ] {
        let told = holds(text, &object).expect_err(text);
        assert!(told.starts_with(expected) && !told.contains("canary"), "{text}: {told}");
    }
}

#[test]
fn what_is_not_bounded_is_refused_with_its_reason() {
    let many = |part: &str, count: usize, join: &str| vec![part; count].join(join);
    for (text, expected) in [
        ("x".repeat(1025).as_str(), "1025 bytes, of at most 1024"),
        ("", "mismatched input '<EOF>'"),
        ("status.phase = 'ready'", "(line 1, column 14)"),
        ("status.phase == 'ready' 7", "mismatched input '7'"),
        ("self.status.phase == 'ready'", "the variable self"),
        ("data.x == 1", "the variable data"),
        (".status.x == 1", "the variable .status"),
        ("status.a.all(e, f.x)", "the variable f"),
        ("status.a.all(e, e.x) && e.x", "the variable e"),
        ("status.a.all(status, status.x)", "status as the variable of a macro"),
        ("status.a.map(e, e.x) == [1]", "the macro map"),
        ("status.a.map(e, e.x, e.y) == [1]", "the macro map"),
        ("status.a.all(e, e.b.exists(f, f.x))", "a macro in another one"),
        ("status.a.all(e, status.b.exists(f, f.x))", "a macro in another one"),
        (&many("status.a.all(e, e.x)", 5, " && "), "more than 4 of the macros"),
        (&many("status.x", 70, " || "), "more than 200 names, literals and calls"),
        (&(many("(", 17, "") + "true" + &many(")", 17, "")), "nested more than 16 deep"),
        (&many("status", 19, "."), "nested more than 16 deep"),
        (&many("true ? true : true", 17, " == "), "more than 16 question marks"),
        ("status.x.matches('^a')", "matches(): there are has, size"),
        ("matches(status.x, '^a')", "matches(): there are"),
        ("string(status.x) == '1'", "string(): there are"),
        ("status.a + status.b == 1", "+, which joins"),
        ("status.a.all(e, e.x + 'a' == 'b')", "+, which joins"),
        ("[status.a, status.b].all(e, e == 1)", "a list of anything but literals"),
        ("{'a': 1}.a == 1", "a map in braces"),
        ("status.a.all(e, status == status)", "in a macro, other than"),
        ("status.a.all(e, size(status.b) == 1)", "in a macro, other than"),
        ("status.a.all(e, e in status.b)", "in a macro, other than"),
        ("status.a.all(e, e.x < status.x)", "in a macro, other than"),
        ("status.a.all(e, status.b[e] == 1)", "in a macro, other than"),
        ("status.a.all(e, e.x - status.x == 1)", "in a macro, other than"),
        ("status.a.all(e, (e.x ? status.b : status.c) == status.d)", "in a macro, other than"),
        ("status.?a == 1", "unsupported syntax"),
        ("has(status)", "invalid argument to has()"),
        ("status.a.exists(e.x, true)", "argument must be a simple name"),
        ("type(status.x) == int", "there are"),
        ("duration('1s') == 1", "there are"),
        ("'\\x'", "(line 1"),
    ] {
        let told = Expression::parse(text).expect_err(text);
        assert!(told.contains(expected), "{text}: {told}");
    }
    // A bracket and a question mark in a text count as well, and few are enough.
    assert!(Expression::parse("status.x == '((((([[[[[' || status.y == '?'").is_ok());
}

#[test]
fn objects_above_64_kib_and_lists_of_more_than_1000_elements_are_too_large() {
    let text_of = |bytes: usize| json!({"status": {"text": "x".repeat(bytes)}});
    assert!(Facts::of(&text_of(65_000)).is_ok() && Facts::of(&text_of(66_000)).is_err());
    let list_of = |count: usize| json!({"spec": {"list": vec![1; count]}});
    assert!(Facts::of(&list_of(1000)).is_ok() && Facts::of(&list_of(1001)).is_err());
    let fields: Map<_, _> = (0..1001).map(|at| (format!("f{at}"), json!(1))).collect();
    assert!(Facts::of(&json!({ "status": fields })).is_err());
    let managed = json!({"metadata": {"name": "a", "managedFields": [{"fieldsV1": "x".repeat(70_000)}]}, "data": "x".repeat(70_000)});
    assert_eq!(holds("has(metadata.managedFields) || metadata.name != 'a'", &managed), Ok(false));
}

/// On a stack of half of what tasks have.
fn on_a_small_stack(what: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(what).expect("a thread");
    thread.join().expect("no panic");
}

#[test]
fn no_text_exhausts_the_stack() {
    let parts = [
        "(",
        "[",
        "{",
        "{1:",
        "!",
        "-",
        "!-",
        "a.",
        "status.a.",
        "a?",
        "a?b:",
        "a?(",
        "a[",
        "f(",
        "f(a).f(",
        "a.exists(e,",
        "status.all(e,",
        "a&&",
        "a||b&&",
        "a==",
        "a-",
        "a*b-",
        "[a,",
        "x in ",
        "!(",
        "-(",
        "a{b:",
        "a.f().",
        "a.size().",
        "a[0]",
        "\"",
        "'\\",
        "`",
        "r'",
        "(a.",
        "((",
        "has(",
        "//",
        "ä",
        "\0",
    ];
    on_a_small_stack(move || {
        for part in parts {
            for end in ["", "a", "1", ")", "a)"] {
                let text = part.repeat((MOST_BYTES - 8) / part.len()) + end;
                drop(Expression::parse(&text));
                let closed: String = text.chars().rev().filter_map(closing).collect();
                drop(Expression::parse(&(text.chars().take(500).collect::<String>() + "a" + &closed)));
            }
        }
    });
}

fn closing(letter: char) -> Option<char> {
    match letter {
        '(' => Some(')'),
        '[' => Some(']'),
        '{' => Some('}'),
        _ => None,
    }
}

#[test]
fn the_deepest_expressions_are_evaluated_on_a_small_stack() {
    let deep = |open: &str, close: &str| open.repeat(15) + "status.a" + &close.repeat(15);
    on_a_small_stack(move || {
        let mut nested = json!(1);
        for _ in 0..100 {
            nested = json!({ "a": [nested] });
        }
        let object = json!({ "status": {"a": nested, "l": [1, 2]} });
        for text in [
            deep("(", ")"),
            deep("!(", ")"),
            deep("[1][", "]"),
            deep("int(", ")"),
            deep("(true?", ":1)"),
            "true?".repeat(16) + "1" + &":1".repeat(16),
            "true?1:".repeat(16) + "1",
            "status".to_owned() + &".a".repeat(15),
            "status.a == status.a".to_owned(),
            format!("status.l.all(e, {})", deep("(", ")").replace("status.a", "e == status.a")),
        ] {
            let found =
                Expression::parse(&text).map(|expression| Facts::of(&object).map(|facts| facts.hold(&expression)));
            drop(found);
        }
    });
}

/// Texts of expressions that are often valid.
fn text() -> impl Strategy<Value = String> {
    let names = prop_oneof![Just("status"), Just("spec"), Just("metadata"), Just("e"), Just("x")];
    let fields = prop_oneof![Just("a"), Just("list"), Just("name"), Just("conditions"), Just("status")];
    let leaf = prop_oneof![
        (names, fields.clone()).prop_map(|(name, field)| format!("{name}.{field}")),
        prop_oneof![
            Just("e"),
            Just("status"),
            Just("'True'"),
            Just("3"),
            Just("-1.5"),
            Just("true"),
            Just("null"),
            Just("[1, 'a']"),
            Just("7u")
        ]
        .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(6, 60, 3, move |inner| {
        let operators = prop_oneof![
            Just("&&"), Just("||"), Just("=="), Just("!="), Just("<"), Just(">="), Just("-"), Just("*"), Just("/"), Just("%"), Just("in")
        ];
        let macros = prop_oneof![Just("all"), Just("exists"), Just("exists_one"), Just("filter"), Just("map")];
        let functions = prop_oneof![Just("size"), Just("int"), Just("double"), Just("!"), Just("-"), Just("has"), Just("matches")];
        let methods = prop_oneof![Just("startsWith"), Just("endsWith"), Just("contains"), Just("size")];
        prop_oneof![
            4 => (inner.clone(), operators, inner.clone()).prop_map(|(left, operator, right)| format!("({left} {operator} {right})")),
            4 => (inner.clone(), macros, inner.clone()).prop_map(|(list, name, body)| format!("{list}.{name}(e, {body})")),
            1 => (functions, inner.clone()).prop_map(|(name, operand)| format!("{name}({operand})")),
            1 => (inner.clone(), methods, inner.clone()).prop_map(|(of, name, operand)| format!("{of}.{name}({operand})")),
            1 => (inner.clone(), inner.clone()).prop_map(|(of, index)| format!("{of}[{index}]")),
            1 => (inner.clone(), fields.clone()).prop_map(|(of, field)| format!("{of}.{field}")),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![Just("True"), Just("a"), Just(""), Just("ä\0")].prop_map(Value::from),
    ];
    let fields = prop_oneof![Just("a"), Just("list"), Just("name"), Just("conditions"), Just("status")];
    let inner = leaf.prop_recursive(4, 60, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(fields.clone().prop_map(str::to_owned), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    });
    (inner.clone(), inner.clone(), inner)
        .prop_map(|(a, b, c)| json!({"metadata": {"a": a}, "spec": {"list": [b]}, "status": c}))
}

/// Counts how often an expression asks for `metadata`, `spec` and `status`, each of which has lists of so many elements.
struct Counting {
    elements: usize,
    asked: AtomicUsize,
}

impl VariableResolver for Counting {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        if !VARIABLES.contains(&variable) {
            return None;
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        let element = || {
            let fields = ["a", "list", "name", "conditions", "status"];
            let element =
                |name: &'static str| (CelMapKey::from(name), Box::new(CelString::from("True")) as Box<dyn Val>);
            Box::new(CelMap::from(fields.map(element).into_iter().collect::<std::collections::HashMap<_, _>>()))
                as Box<dyn Val>
        };
        let list =
            || Box::new(CelList::from((0..self.elements).map(|_| element()).collect::<Vec<_>>())) as Box<dyn Val>;
        let fields = ["a", "list", "conditions", "name", "status"].map(|name| (CelMapKey::from(name), list()));
        Some(CowVal::owned(CelMap::from(fields.into_iter().collect::<std::collections::HashMap<_, _>>())))
    }
}

/// An object as large as it may be, with lists as long as they may be.
fn large() -> impl Strategy<Value = Value> {
    let element = prop_oneof![
        Just(json!([null, null, null, null, null])),
        Just(json!({"a": "True", "name": "a"})),
        Just(json!("x".repeat(40))),
        Just(json!(7)),
    ];
    (element, 950..=1000_usize, any::<bool>()).prop_map(|(element, count, is_both)| {
        let list = vec![element; count];
        let other = if is_both { vec![json!(1); count] } else { Vec::new() };
        json!({"metadata": {"name": "a"}, "spec": {"list": other}, "status": {"list": list, "conditions": [1]}})
    })
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in ".{0,300}", object in object()) {
        if let Ok(expression) = Expression::parse(&text) {
            let _ = Facts::of(&object).map(|facts| facts.hold(&expression));
        }
    }

    #[test]
    fn no_tokens_make_it_panic(tokens in prop::collection::vec(prop_oneof![
        Just("status"), Just("."), Just("a"), Just("("), Just(")"), Just("["), Just("]"), Just("{"), Just("}"), Just("exists"), Just("all"), Just("e"), Just(","),
        Just("=="), Just("&&"), Just("!"), Just("-"), Just("?"), Just(":"), Just("'a'"), Just("1"), Just("in"), Just("has"), Just("`a`"), Just("b'\\xff'"), Just("0x"),
        Just("ü"), Just("'ü"), Just("\"\"\""), Just("as"), Just("9223372036854775808"), Just("1e999"), Just(" "), Just("\n"), Just("\\")
    ], 0..60), object in object()) {
        if let Ok(expression) = Expression::parse(&tokens.concat()) {
            let _ = Facts::of(&object).map(|facts| facts.hold(&expression));
        }
    }

    #[test]
    fn what_is_accepted_is_true_or_false_or_told_why_not(text in text(), object in prop_oneof![9 => object(), 1 => large()]) {
        if let Ok(expression) = Expression::parse(&text)
            && let Ok(facts) = Facts::of(&object)
            && let Err(told) = facts.hold(&expression)
        {
            prop_assert!(told.len() < 200, "{told}");
        }
    }

    #[test]
    fn an_expression_asks_at_most_as_often_as_it_takes_steps(
        text in text(),
        elements in prop_oneof![9 => 1..30_usize, 1 => 900..=1000_usize],
    ) {
        let Ok(expression) = Expression::parse(&text) else { return Ok(()) };
        let counting = Counting { elements, asked: AtomicUsize::new(0) };
        let mut context = Context::with_env(Arc::new(Env::stdlib()));
        context.set_variable_resolver(&counting);
        drop(cel::Value::resolve_val(&expression.parsed, &context).map(|value| value.get_type().name().to_owned()));
        let asked = counting.asked.load(Ordering::Relaxed);
        let steps = expression.steps(elements, 0);
        prop_assert!(asked <= steps && steps <= 4 * MOST_NODES * (1 + elements), "{asked} of {steps} steps with {elements} elements");
    }
}
