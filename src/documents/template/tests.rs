use super::*;

fn parsed(text: &str) -> Vec<Node> {
    Template::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).nodes().to_vec()
}

fn label(key: &str) -> Expression {
    Expression::Call(Function::FromClusterLabel, vec![Expression::Text(key.to_owned())])
}

fn text(text: &str) -> Node {
    Node::Text(text.to_owned())
}

#[test]
fn text_without_actions_is_itself() {
    for plain in ["", "a", "} }} { {", "a\n\"b\""] {
        let expected = if plain.is_empty() { vec![] } else { vec![text(plain)] };
        assert_eq!(parsed(plain), expected);
    }
}

#[test]
fn labels_are_read_under_both_names() {
    for template in [
        "{{ fromCDLabel \"region\" }}",
        "{{fromClusterLabel `region`}}",
        "{{ \"region\" | fromCDLabel }}",
        "{{(fromCDLabel \"region\")}}",
    ] {
        assert_eq!(parsed(template), [Node::Print(label("region"))], "{template}");
    }
}

#[test]
fn a_minus_beside_a_space_trims() {
    assert_eq!(parsed("a \n{{- \"b\" -}} \n c"), [text("a"), Node::Print(Expression::Text("b".to_owned())), text("c")]);
    assert_eq!(parsed("a {{-3}} b"), [text("a "), Node::Print(Expression::Integer(-3)), text(" b")]);
    assert_eq!(parsed("a {{- /* comment */ -}} b"), [text("a"), text("b")]);
    assert_eq!(parsed("a {{/* comment */}} b"), [text("a "), text(" b")]);
}

#[test]
fn conditions_have_alternatives() {
    let equal = |value: &str| Expression::Call(Function::Equal, vec![label("env"), Expression::Text(value.to_owned())]);
    let nodes = parsed(
        "{{ if eq (fromCDLabel \"env\") \"prod\" }}1{{ else if eq (fromCDLabel \"env\") \"test\" }}2{{ else }}3{{ end }}",
    );
    let branches = vec![(equal("prod"), vec![text("1")]), (equal("test"), vec![text("2")])];
    assert_eq!(nodes, [Node::If { branches, otherwise: vec![text("3")] }]);
}

#[test]
fn variables_are_set_before_they_are_used_and_end_with_their_block() {
    let nodes = parsed("{{ $a := true }}{{ if $a }}{{ $b := 1 }}{{ $a = not $b }}{{ end }}{{ $a }}");
    assert_eq!(nodes.len(), 3);
    assert_eq!(nodes[0], Node::Set { name: "a".to_owned(), declares: true, value: Expression::Boolean(true) });
    for (template, name) in [
        ("{{ $a }}", "a"),
        ("{{ $a = 1 }}", "a"),
        ("{{ $a := $a }}", "a"),
        ("{{ if true }}{{ $b := 1 }}{{ else }}{{ $b }}{{ end }}", "b"),
    ] {
        let error = Template::parse(template).expect_err(template);
        assert_eq!(error.reason, format!("the variable `${name}` is not set before"));
    }
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    for (template, line, reason) in [
        ("\n{{ range $a }}{{ end }}", 2, "`range` is not known"),
        ("{{ .Values }}", 1, "a field of the data, of which there is none"),
        ("{{ $ }}", 1, "`$`, the data, of which there is none"),
        ("{{ $a := \"\" }}{{ $a.b }}", 1, "'.' right behind a word"),
        ("{{ fromCDLable \"a\" }}", 1, "`fromCDLable` is not known; did you mean `fromCDLabel`?"),
        ("{{ fromCDLabel }}", 1, "`fromCDLabel` with 0 values; it takes 1"),
        ("{{ fromCDLabel 7 }}", 1, "`fromCDLabel` with a value that is no text"),
        ("{{ eq \"a\" }}", 1, "`eq` with 1 values; it takes at least 2"),
        ("{{ ne 1 2 3 }}", 1, "`ne` with 3 values; it takes 2"),
        ("{{ eq fromCDLabel \"a\" }}", 1, "`fromCDLabel` as a value; put it into parentheses"),
        ("{{ \"a\" \"b\" }}", 1, "values beside each other without a function"),
        ("{{ \"a\n\" }}", 1, "a text in quotes that does not end or has an unknown escape"),
        ("{{ \"\\q\" }}", 1, "a text in quotes that does not end or has an unknown escape"),
        ("{{ 010 }}", 1, "\"010\", which is no whole number"),
        ("{{ 1.5 }}", 1, "\"1.5\", which is no whole number"),
        ("{{ }}", 1, "an empty action"),
        ("a\n\n{{ if true", 3, "an action that does not end"),
        ("a\n{{ if true }}\n\n", 2, "`if` without `end`"),
        ("{{ end }}", 1, "`end` or `else` without `if`"),
        ("{{ if true }}{{ else }}{{ else }}{{ end }}", 1, "a second `else`"),
        ("{{ if }}{{ end }}", 1, "a value is missing"),
        ("{{ (not true }}", 1, "a `(` without `)`"),
        ("{{ not true) }}", 1, "a `)` without `(`, or `=` where no variable is set"),
        ("{{ {{ }}", 1, "'{', which has no meaning here"),
        ("{{ printf \"%s\" }}", 1, "a format with 1 verbs for 0 values"),
        ("{{ printf \"%x\" 1 }}", 1, "a verb in the format that is none of %s, %q, %d, %v and %%"),
        ("{{ printf \"%1001s\" \"a\" }}", 1, "a width or precision above 1000 in the format"),
        ("{{ printf \"%.99999999999s\" \"a\" }}", 1, "a width or precision above 1000 in the format"),
        ("{{ $a := \"%s\" }}{{ printf $a \"b\" }}", 1, "`printf` whose first value is no text in quotes"),
        ("{{ /* a }}", 1, "a comment that does not end"),
    ] {
        let error = Template::parse(template).expect_err(template);
        assert_eq!((error.line, error.reason.as_str()), (line, reason), "{template}");
    }
}

#[test]
fn formats_have_widths_up_to_a_thousand() {
    assert!(Template::parse("{{ printf \"%-1000.1000s %05d %q %v %%\" \"a\" 1 \"b\" true }}").is_ok());
    assert!(Template::parse("{{ \"b\" | printf \"%s\" }}").is_ok());
}

#[test]
fn nesting_is_bounded() {
    let parentheses = |depth: usize| format!("{{{{ {}true{} }}}}", "(not ".repeat(depth), ")".repeat(depth));
    assert!(Template::parse(&parentheses(32)).is_ok());
    assert!(Template::parse(&parentheses(33)).is_err());
    assert!(Template::parse(&parentheses(100_000)).is_err());
    let pipes = |count: usize| format!("{{{{ true{} }}}}", " | not".repeat(count));
    assert!(Template::parse(&pipes(32)).is_ok());
    assert_eq!(Template::parse(&pipes(33)).expect_err("too many").reason, "more than 32 pipes in an action");
    assert!(Template::parse(&pipes(100_000)).is_err());
    let blocks = |depth: usize| format!("{}{}", "{{ if true }}".repeat(depth), "{{ end }}".repeat(depth));
    assert!(Template::parse(&blocks(32)).is_ok());
    assert!(Template::parse(&blocks(33)).is_err());
}

#[test]
fn a_block_has_up_to_a_thousand_variables_and_one_counts_once() {
    let declared = |count: usize| {
        let declared: Vec<String> = (0..count).map(|index| format!("{{{{ $a{index} := 1 }}}}")).collect();
        declared.concat()
    };
    assert!(Template::parse(&declared(1_000)).is_ok());
    assert_eq!(Template::parse(&declared(1_001)).expect_err("too many").reason, "more than 1000 variables");
    assert!(Template::parse(&"{{ $a := 1 }}".repeat(2_000)).is_ok());
    let ended = format!("{{{{ if true }}}}{}{{{{ end }}}}", declared(600));
    assert!(Template::parse(&ended.repeat(3)).is_ok());
}

#[test]
fn a_template_has_at_most_twenty_thousand_words_and_actions() {
    let actions = |count: usize| "a{{ 1 }}".repeat(count);
    assert!(Template::parse(&actions(10_000)).is_ok());
    let error = Template::parse(&actions(10_001)).expect_err("too many");
    assert_eq!((error.line, error.reason.as_str()), (1, "more than 20000 words and actions in the template"));
    let values = |count: usize| format!("{{{{ eq{} }}}}", " 1".repeat(count));
    assert!(Template::parse(&values(19_998)).is_ok());
    assert_eq!(Template::parse(&format!("\n{}", values(19_999))).expect_err("too many").line, 2);
    // Text around the actions does not count, nor do comments.
    assert!(Template::parse(&"a b c {{/* d */}}".repeat(20_001)).is_ok());
}

#[test]
fn the_line_of_each_action_is_known() {
    for lines in [1, 2, 1_000] {
        let text = "{{ 1 }}{{/* a\n */}}{{ `\n` }} {{\n2 }}\n".repeat(lines);
        let error = Template::parse(&format!("{text}\n{{{{ $a }}}}")).expect_err("an unknown variable");
        assert_eq!(error.line, 4 * lines + 2);
    }
}

#[test]
fn only_the_spaces_of_go_are_trimmed() {
    assert_eq!(parsed("\u{a0} {{- 1 -}}\t\u{b}"), [text("\u{a0}"), Node::Print(Expression::Integer(1)), text("\u{b}")]);
    assert!(Template::parse("{{\u{a0}1 }}").is_err());
}
