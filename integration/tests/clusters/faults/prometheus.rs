//! A strict reader of Prometheus' text format: what it takes, every scraper takes.

use std::collections::{BTreeMap, BTreeSet};

/// One family of a scrape.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) samples: Vec<Sample>,
}

/// One line of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// Reads a scrape; an error names the line.
pub(crate) fn read(text: &str) -> Result<BTreeMap<String, Family>, String> {
    if !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let bad = |what: &str| format!("{what}: {line}");
        if let Some(comment) = line.strip_prefix("# ") {
            let (word, rest) = comment.split_once(' ').ok_or_else(|| bad("a comment that is none"))?;
            let (name, rest) = rest.split_once(' ').ok_or_else(|| bad("nothing about the metric"))?;
            if name != current && families.contains_key(name) {
                return Err(bad("a family in two places"));
            }
            name.clone_into(&mut current);
            let family = families.entry(current.clone()).or_default();
            let place = match word {
                "HELP" => &mut family.help,
                "TYPE" if ["counter", "gauge", "histogram"].contains(&rest) => &mut family.kind,
                _ => return Err(bad("neither HELP nor TYPE")),
            };
            if !place.is_empty() || !family.samples.is_empty() {
                return Err(bad("told twice, or after a sample"));
            }
            rest.clone_into(place);
            continue;
        }
        let sample = sample(line).map_err(|what| bad(&what))?;
        let family = families.get_mut(&current).ok_or_else(|| bad("a sample of no family"))?;
        let suffix = sample.name.strip_prefix(&current).ok_or_else(|| bad("a sample of another family"))?;
        let fits = match family.kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
            "counter" | "gauge" => suffix.is_empty(),
            _ => false,
        };
        if !fits || (family.kind == "counter" && (sample.value < 0.0 || !current.ends_with("_total"))) {
            return Err(bad("not a sample of this type"));
        }
        if !seen.insert(format!("{} {:?}", sample.name, sample.labels)) {
            return Err(bad("the same series twice"));
        }
        family.samples.push(sample);
    }
    for (name, family) in &families {
        if family.kind.is_empty() || family.help.is_empty() {
            return Err(format!("{name} has no type or no help"));
        }
        if family.kind == "histogram" {
            buckets(family).map_err(|what| format!("{name}: {what}"))?;
        }
    }
    Ok(families)
}

/// Buckets count up to `+Inf`, which is the count.
fn buckets(family: &Family) -> Result<(), String> {
    let mut series: BTreeMap<String, (f64, f64, f64)> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le");
        let key = format!("{labels:?}");
        let entry = series.entry(key.clone()).or_insert((f64::NEG_INFINITY, 0.0, -1.0));
        if sample.name.ends_with("_bucket") {
            let bound = number(&bound.ok_or("a bucket without bound")?)?;
            if bound <= entry.0 || sample.value < entry.1 {
                return Err(format!("buckets out of order in {key}"));
            }
            (entry.0, entry.1) = (bound, sample.value);
        } else if sample.name.ends_with("_count") {
            entry.2 = sample.value;
        }
    }
    let whole = |(last, counted, count): &(f64, f64, f64)| *last == f64::INFINITY && counted.total_cmp(count).is_eq();
    if series.values().all(whole) { Ok(()) } else { Err(format!("{series:?}")) }
}

fn is_name(text: &str, colons: bool) -> bool {
    let is_first =
        |character: char| character.is_ascii_alphabetic() || character == '_' || (colons && character == ':');
    text.starts_with(is_first) && text.chars().all(|character| is_first(character) || character.is_ascii_digit())
}

fn number(text: &str) -> Result<f64, String> {
    match text {
        "+Inf" => Ok(f64::INFINITY),
        "-Inf" => Ok(f64::NEG_INFINITY),
        "NaN" => Ok(f64::NAN),
        _ if text.starts_with(|first: char| first.is_ascii_digit() || first == '-') => {
            text.parse().map_err(|_| format!("no number: {text}"))
        }
        _ => Err(format!("no number: {text}")),
    }
}

fn sample(line: &str) -> Result<Sample, String> {
    let (head, value) = line.rsplit_once(' ').ok_or("no value")?;
    let (name, mut rest) = match head.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}').ok_or("labels do not end")?),
        None => (head, ""),
    };
    if !is_name(name, true) {
        return Err(format!("no name: {name}"));
    }
    let mut labels = BTreeMap::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").ok_or("a label without value")?;
        if !is_name(label, false) {
            return Err(format!("no label: {label}"));
        }
        let mut content = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().ok_or("a value without end")? {
                (at, '"') => break at,
                (_, '\\') => match characters.next() {
                    Some((_, 'n')) => content.push('\n'),
                    Some((_, character @ ('\\' | '"'))) => content.push(character),
                    other => return Err(format!("no such escape: {other:?}")),
                },
                (_, character) => content.push(character),
            }
        };
        if labels.insert(label.to_owned(), content).is_some() {
            return Err(format!("{label} twice"));
        }
        let after = after.split_at(end + 1).1;
        rest = if after.is_empty() { after } else { after.strip_prefix(',').ok_or("no comma between labels")? };
    }
    Ok(Sample { name: name.to_owned(), labels, value: number(value)? })
}

#[test]
fn the_reader_is_strict() {
    let good = "# HELP a_total What.\n# TYPE a_total counter\na_total{b=\"c\\\"\\n\",d=\"\"} 1\na_total 2.5e3\n";
    let read_good = read(good).unwrap();
    assert_eq!(read_good["a_total"].samples[0].labels["b"], "c\"\n");
    for (from, to) in [
        ("\na_total 2.5e3\n", "\na_total 2.5e3"),
        ("a_total 2.5e3", "b_total 2.5e3"),
        ("a_total 2.5e3", "a_total{d=\"\",b=\"c\\\"\\n\"} 3"),
        ("a_total 2.5e3", "a_total x"),
        ("a_total 2.5e3", "a_total -1"),
        ("# TYPE a_total counter\n", ""),
        ("# HELP a_total What.\n", ""),
        ("counter", "thing"),
        ("\\\"\\n", "\\q"),
        ("\",d", "\" d"),
    ] {
        assert!(good.contains(from), "{from}");
        assert!(read(&good.replace(from, to)).is_err(), "{from} -> {to}");
    }
    let histogram =
        "# HELP h What.\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n";
    assert!(read(histogram).is_ok());
    assert!(read(&histogram.replace("h_count 2", "h_count 3")).is_err());
    assert!(read(&histogram.replace("\"1\"} 1", "\"1\"} 3")).is_err());
}
