use std::collections::BTreeMap;

use super::*;

/// Templates and what Go 1.26 makes of them; `None` is an error. `integration/tests/contract/templates` has more of them, from Go itself.
#[rustfmt::skip]
const MADE_BY_GO: &[(&str, Option<&str>)] = &[
    (r#"{{ fromCDLabel "region" }}/{{ fromClusterLabel "env" }}/{{ fromCDLabel "none" }}."#, Some("eu-west/prod/.")),
    (r#"{{ 5 }} {{ -5 }} {{ +5 }} {{ true }} {{ false }} {{ "a\n" }} {{ `b\n` }}"#, Some("5 -5 5 true false a\n b\\n")),
    (r#"{{ if fromCDLabel "env" }}1{{ else }}2{{ end }}{{ if fromCDLabel "empty" }}1{{ else }}2{{ end }}"#, Some("12")),
    (r#"{{ if 0 }}1{{ end }}{{ if -1 }}2{{ end }}{{ if false }}3{{ end }}{{ if "" }}4{{ end }}{{ if "0" }}5{{ end }}"#, Some("25")),
    (r#"{{ if eq (fromCDLabel "env") "test" }}t{{ else if eq (fromCDLabel "env") "prod" }}p{{ else }}o{{ end }}"#, Some("p")),
    ("{{ $a := 1 }}{{ if true }}{{ $a := 2 }}{{ $a = 3 }}{{ $a }}{{ end }}{{ $a }}", Some("31")),
    (r#"{{ $a := 1 }}{{ if true }}{{ $a = "x" }}{{ end }}{{ $a }}"#, Some("x")),
    ("{{ $a := 1 }}{{ $a := 2 }}{{ $a = 3 }}{{ $a }}", Some("3")),
    (r#"{{ eq 1 1 }} {{ eq 1 2 3 1 }} {{ eq "a" "b" }} {{ eq true true }} {{ ne 1 2 }} {{ ne "a" "a" }}"#, Some("true true false true true false")),
    (r#"{{ eq 1 "1" }}"#, None),
    (r#"{{ ne true "true" }}"#, None),
    (r#"{{ eq 1 1 "a" }}"#, Some("true")),
    (r#"{{ eq 1 2 "a" }}"#, None),
    (r#"{{ and 1 "" 2 }}|{{ and 1 2 }}|{{ and 0 1 }}|{{ or 0 "" }}|{{ or 0 "a" 2 }}|{{ and false }}|{{ or 3 }}"#, Some("|2|0||a|false|3")),
    (r#"{{ not 0 }} {{ not "a" }} {{ not (not true) }}"#, Some("true false true")),
    ("{{ $a := 1 }}{{ fromCDLabel $a }}", None),
    (r#"{{ $a := "env" }}{{ fromCDLabel $a }}"#, Some("prod")),
    ("{{ $a := 1 }}{{ or true (fromCDLabel $a) }}", Some("true")),
    ("{{ $a := 1 }}{{ fromCDLabel $a | or true }}", None),
    (r#"{{ "x" | or "" }}|{{ "x" | and 1 }}|{{ "x" | or 1 }}|{{ "" | not | printf "%v" }}"#, Some("x|x|1|true")),
    ("a {{- 1 -}} b {{ 2 -}}\n\tc{{- \"\" }}", Some("a1b 2c")),
    ("a\u{a0}{{- 1 }}", Some("a\u{a0}1")),
    ("a {{- /* x */ -}} b", Some("ab")),
    (r#"{{ printf "%s %q %d %v %%" "a" "b" 3 true }}"#, Some(r#"a "b" 3 true %"#)),
    (r#"{{ printf "%s|%d|%q|%s|%d" 5 "x" true true false }}"#, Some("%!s(int=5)|%!d(string=x)|%!q(bool=true)|%!s(bool=true)|%!d(bool=false)")),
    (r#"{{ printf "%5s|%-5s|%05s|%-05s|%.1s|%5.1s|" "ab" "ab" "ab" "ab" "äb" "äb" }}"#, Some("   ab|ab   |000ab|ab   |ä|    ä|")),
    (r#"{{ printf "%5d|%-5d|%05d|%-05d|%+d|% d|%+05d|% 05d|%.3d|%05.3d|%.0d|%3.0d|" 42 42 42 42 42 42 -42 42 42 42 0 0 }}"#, Some("   42|42   |00042|42   |+42| 42|-0042| 0042|042|  042||   |")),
    (r#"{{ printf "%v|%+v|%#v|% v|%5v|%05v|%+5v" 1 1 1 1 1 1 1 }}"#, Some("1|1|1| 1|    1|00001|    1")),
    (r#"{{ printf "%v|%+v|%#v|%5v|%#5v|%.1v|%#.1v" "ab" "ab" "ab" "ab" "ab" "ab" "ab" }}"#, Some(r#"ab|ab|"ab"|   ab| "ab"|a|"a""#)),
    (r#"{{ printf "%v|%6v|%-6v|%06v|%.1v" true false true true true }}"#, Some("true| false|true  |00true|true")),
    (r#"{{ printf "%q|%+q|%#q|%#q|%#+q|%8q|%-8q|%08q|%.1q" "ä" "ä" "a" "`" "a" "a" "a" "a" "äb" }}"#, Some(r#""ä"|"\u00e4"|`a`|"`"|`a`|     "a"|"a"     |00000"a"|"ä""#)),
    (r#"{{ printf "%q|%+q|%q|%q|%q|%5q|%05q|%#q|%q" 65 228 -1 55296 1114112 65 65 65 39 }}"#, Some(r"'A'|'\u00e4'|'�'|'�'|'�'|  'A'|00'A'|'A'|'\''")),
    (r#"{{ printf "%q" "\a\b\f\n\r\t\v\\\"'\x01\x7f\u00a0\u00ad\u0301\u200b\U0001F600\U000E0001" }}"#, Some(r#""\a\b\f\n\r\t\v\\\"'\x01\x7f\u00a0\u00ad́\u200b😀\U000e0001""#)),
    (r#"{{ printf "%q" 0 }}{{ printf "%q" 7 }}"#, Some(r"'\x00''\a'")),
    (r#"{{ printf "%5d|%+s|%.1d|%#d|%05d" "xyz" 5 "xyz" "xyz" "xyz" }}"#, Some("%!d(string=  xyz)|%!s(int=+5)|%!d(string=x)|%!d(string=xyz)|%!d(string=00xyz)")),
    (r#"{{ printf "%5%|%-%|% %|%.3%" }}"#, Some("%|%|%|%")),
    (r#"{{ printf "%d" 9223372036854775807 }} {{ printf "%d" -9223372036854775808 }} {{ printf "%020d" -9223372036854775808 }}"#, Some("9223372036854775807 -9223372036854775808 -9223372036854775808")),
    (r#"{{ (printf "%s-%s" (fromCDLabel "env") (fromCDLabel "region")) | printf "%q" }}"#, Some(r#""prod-eu-west""#)),
    (r#"}} {{ "}}" }} { {"#, Some("}} }} { {")),
    (r#"{{ if and (eq (fromCDLabel "env") "prod") (not (fromCDLabel "none")) }}y{{ end }}"#, Some("y")),
];

fn rendered(template: &str) -> Result<String, Unrenderable> {
    let labels = [("region", "eu-west"), ("env", "prod"), ("empty", ""), ("n", "7")];
    let labels: BTreeMap<&str, &str> = labels.into_iter().collect();
    let template = Template::parse(template).unwrap_or_else(|error| panic!("{template}: {error}"));
    template.render(&|key| labels.get(key).copied(), &mut TextBudget::default())
}

#[test]
fn templates_mean_what_they_mean_in_go() {
    for (template, made) in MADE_BY_GO {
        assert_eq!(rendered(template).ok().as_deref(), *made, "{template}");
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for (template, message) in [
        ("{{ $a := 1 }}{{ fromCDLabel $a }}", "`fromCDLabel` with a number, where it takes a string"),
        ("{{ fromCDLabel (not 1) }}", "`fromCDLabel` with a boolean, where it takes a string"),
        ("{{ eq \"a\" 1 }}", "`eq` with a string and a number, which don't compare"),
        ("{{ ne true \"a\" }}", "`ne` with a boolean and a string, which don't compare"),
    ] {
        let error = rendered(template).expect_err(template);
        assert_eq!(error.to_string(), message, "{template}");
    }
}

/// Doubles a text of 1,024 bytes so many times.
fn doubled(times: usize) -> String {
    let double = r#"{{ $a = printf "%s%s" $a $a }}"#;
    format!("{{{{ $a := printf \"%1000s%24s\" \"\" \"\" }}}}{}", double.repeat(times))
}

#[test]
fn a_result_has_at_most_a_mebibyte() {
    let most = format!("{}{{{{ $a }}}}", doubled(10));
    assert_eq!(rendered(&most).map(|text| text.len()), Ok(LONGEST));
    assert_eq!(rendered(&format!("{most}a")), Err(Unrenderable::TooLong));
    assert_eq!(rendered(&doubled(11)), Err(Unrenderable::TooLong));
    // One value that grows while it is made.
    let wide = format!("{{{{ $a := \"\" }}}}{{{{ printf \"{}\" {} }}}}", "%1000s".repeat(2_000), "$a ".repeat(2_000));
    assert_eq!(rendered(&wide), Err(Unrenderable::TooLong));
}

#[test]
fn the_templates_of_a_syncset_share_what_they_may_make() {
    let template = Template::parse(&format!("{}{{{{ $a }}}}", doubled(10))).expect("a template");
    // Values of 1 KiB to 1 MiB, and the result.
    let each = (1 << 21) - (1 << 10) + (1 << 20);
    let mut budget = TextBudget::default();
    for _ in 0..BUDGET / each {
        assert_eq!(template.render(&|_| None, &mut budget).map(|text| text.len()), Ok(LONGEST));
    }
    assert_eq!(template.render(&|_| None, &mut budget), Err(Unrenderable::TooMuch));
    // Comparing counts too.
    let equal = format!("{}{{{{ $b := printf \"%s\" $a }}}}{}", doubled(9), "{{ eq $a $b }}".repeat(40));
    assert_eq!(rendered(&equal), Err(Unrenderable::TooMuch));
}

#[test]
fn variables_that_are_looked_through_count() {
    let declared: Vec<String> = (0..1_000).map(|index| format!("{{{{ $a{index} := 1 }}}}")).collect();
    // The last one is found behind all the others, twice in each action.
    let used = "{{ $a999 = $a999 }}".repeat(1_000);
    let template = Template::parse(&format!("{}{used}", declared.concat())).expect("a template");
    let mut budget = TextBudget::default();
    let times = BUDGET / 2_000_000;
    for _ in 0..times {
        assert_eq!(template.render(&|_| None, &mut budget).as_deref(), Ok(""));
    }
    assert_eq!(template.render(&|_| None, &mut budget), Err(Unrenderable::TooMuch));
}

#[test]
fn every_template_that_parses_is_rendered_on_a_small_stack() {
    let pipes = format!("{{{{ true{} }}}}", " | not".repeat(32));
    let nested = format!("{{{{ {}true{} }}}}", "(not ".repeat(32), ")".repeat(32));
    let blocks = format!("{}{pipes}{nested}{}", "{{ if true }}".repeat(32), "{{ end }}".repeat(32));
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    let made = thread.spawn(move || rendered(&blocks)).expect("a thread").join().expect("no overflow");
    assert_eq!(made.as_deref(), Ok("truetrue"));
}
