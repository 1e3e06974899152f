use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cel::common::traits::{Comparer, Container, Indexer, Iterable, Sizer};
use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, DYN_TYPE, Type};
use cel::common::value::{Builtin, BuiltinRef, CowVal, Val};
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

/// A value as it is, with a count of how often it is compared, searched or copied.
#[derive(Debug)]
struct Counted {
    value: Box<dyn Val>,
    work: Arc<AtomicUsize>,
}

impl Counted {
    /// As [`Facts`] have it.
    fn of(value: &Value, work: &Arc<AtomicUsize>) -> Box<dyn Val> {
        let inner: Box<dyn Val> = match value {
            Value::Object(fields) => {
                let fields = fields.iter().filter(|(_, value)| !value.is_null());
                let fields = fields.map(|(name, value)| (CelMapKey::from(name.clone()), Self::of(value, work)));
                Box::new(CelMap::from(fields.collect::<HashMap<_, _>>()))
            }
            Value::Array(elements) => {
                Box::new(CelList::from(elements.iter().map(|element| Self::of(element, work)).collect::<Vec<_>>()))
            }
            Value::String(text) => Box::new(CelString::from(text.clone())),
            Value::Bool(is_true) => Box::new(CelBool::from(*is_true)),
            Value::Number(number) => match number.as_i64() {
                Some(number) => Box::new(CelInt::from(number)),
                None => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
            },
            Value::Null => Box::new(CelNull),
        };
        Box::new(Self { value: inner, work: Arc::clone(work) })
    }

    fn count(&self) {
        self.work.fetch_add(1, Ordering::Relaxed);
    }
}

impl Val for Counted {
    fn get_type(&self) -> &Type {
        self.value.get_type()
    }

    fn cel_type() -> &'static Type {
        &DYN_TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        self.count();
        self.value.equals(other)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        self.count();
        Box::new(Self { value: self.value.clone_as_boxed(), work: Arc::clone(&self.work) })
    }

    fn as_comparer(&self) -> Option<&dyn Comparer> {
        self.count();
        self.value.as_comparer()
    }

    fn as_container(&self) -> Option<&dyn Container> {
        self.count();
        self.value.as_container()
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        self.value.as_indexer()
    }

    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        self.value.as_iterable()
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        self.value.as_sizer()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.value.as_any()
    }

    fn as_builtin<'b, 'v>(&'b self) -> BuiltinRef<'b, 'v>
    where
        Self: 'v,
    {
        self.value.as_builtin()
    }

    fn into_indexer<'v>(self: Box<Self>) -> Option<Box<dyn Indexer + 'v>>
    where
        Self: 'v,
    {
        self.value.into_indexer()
    }

    fn into_builtin<'v>(self: Box<Self>) -> Option<Builtin<'v>>
    where
        Self: 'v,
    {
        self.value.into_builtin()
    }
}

/// Also counts how often an expression asks for `metadata`, `spec` and `status`.
struct Counting {
    variables: HashMap<&'static str, Box<dyn Val>>,
    work: Arc<AtomicUsize>,
}

impl VariableResolver for Counting {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let value = self.variables.get(variable)?;
        self.work.fetch_add(1, Ordering::Relaxed);
        Some(CowVal::Borrowed(value.as_ref()))
    }
}

/// What was done to evaluate an expression: look-ups of variables, and comparisons and copies of values.
fn work(expression: &Expression, object: &Value) -> usize {
    let work = Arc::new(AtomicUsize::new(0));
    let none = json!({});
    let variable =
        |name| (name, Counted::of(object.get(name).filter(|value| value.is_object()).unwrap_or(&none), &work));
    let counting = Counting { variables: VARIABLES.map(variable).into(), work: Arc::clone(&work) };
    let mut context = Context::with_env(Arc::new(Env::stdlib()));
    context.set_variable_resolver(&counting);
    drop(cel::Value::resolve_val(&expression.parsed, &context).map(|value| value.get_type().name().to_owned()));
    work.load(Ordering::Relaxed)
}

#[test]
fn the_dearest_rules_do_no_more_than_is_counted() {
    let (elements, values) = (1000, 11_000);
    // As many values as 64 KiB have, in lists and in objects.
    let lists = json!({"status": {"list": vec![vec![Value::Null; 10]; elements], "first": vec![Value::Null; 10]}});
    let fields = json!({"a": 1, "b": 1, "c": 1, "d": 1});
    let objects = json!({"status": {"list": vec![fields.clone(); elements], "first": fields}});
    let numbers = json!({"status": {"list": vec![1; elements], "first": 2}});
    let many = |part: &str, count: usize| vec![part; count].join(" && ");
    let filters = "status.list.filter(a, true).filter(b, true).filter(c, true)";
    for (text, object, at_least) in [
        // Whole lists.
        (many("status.list == status.list", 28), &lists, 28 * values),
        (many("status == status", 49), &lists, 49 * values),
        (many("!(status.list != status.list)", 24), &objects, 24 * 5 * elements),
        (many("!(status.first in status.list)", 24), &numbers, 24 * elements),
        // All elements, each as a whole.
        (format!("status.list.all(e, {})", many("e == e", 49)), &lists, 50 * values),
        (format!("status.list.all(e, {})", many("e == status.first", 30)), &lists, 31 * values),
        (format!("status.list.all(e, {})", many("e == e", 49)), &objects, 50 * 5 * elements),
        (format!("status.list.all(e, {})", many("e.d == 1", 39)), &objects, 44 * elements),
        (many(&format!("status.list.all(e, {})", many("e == 1", 11)), 4), &numbers, 4 * 12 * elements),
        (format!("!status.list.exists(e, {})", vec!["e == 2"; 49].join(" || ")), &numbers, 50 * elements),
        // Macros that copy more than they ask.
        (many("status.list.all(e, true)", 4), &lists, 4 * values),
        (many("!status.list.exists_one(e, true)", 4), &lists, 4 * values),
        (format!("{filters}.all(d, true)"), &lists, 10 * values),
        (format!("{filters}.filter(d, true) == status.list"), &lists, 13 * values),
        (format!("{filters}.filter(d, true) == status.list"), &objects, 13 * 5 * elements),
        (format!("{filters}.filter(d, true).size() == 1000"), &lists, 12 * values),
        (format!("{filters}.filter(d, true)[999][9] == null"), &lists, 12 * values),
        ("metadata.all(k, k == k)".to_owned(), &json!({"metadata": {"a": 1, "b": 2}}), 1),
    ] {
        let expression = Expression::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let facts = Facts::of(object).unwrap_or_else(|_| panic!("{text}: too large"));
        assert_eq!(facts.hold(&expression), Ok(true), "{text}");
        let (done, steps) = (work(&expression, object), facts.steps(&expression));
        assert!((at_least..=steps).contains(&done), "{text}: {done} of {steps} steps, and at least {at_least}");
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

/// An object with a list of so many elements wherever a text may look for one.
fn filled(elements: usize) -> Value {
    let of_each = |value: Value| {
        let fields = ["a", "list", "name", "conditions", "status"].map(|name| (name.to_owned(), value.clone()));
        Value::Object(fields.into_iter().collect())
    };
    let lists = of_each(json!(vec![of_each(json!("True")); elements]));
    json!({"metadata": lists, "spec": lists, "status": lists})
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
    fn an_expression_does_at_most_as_much_as_it_takes_steps(
        text in text(),
        object in prop_oneof![4 => object(), 5 => (1..30_usize).prop_map(filled), 1 => large()],
    ) {
        let Ok(expression) = Expression::parse(&text) else { return Ok(()) };
        let Ok(facts) = Facts::of(&object) else { return Ok(()) };
        let (done, steps) = (work(&expression, &object), facts.steps(&expression));
        prop_assert!(done <= steps, "{done} of {steps} steps");
    }
}
