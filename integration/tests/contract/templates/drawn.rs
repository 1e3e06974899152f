//! Templates and YAML by lot: what both Towline and Go parse.

/// Draws lots (`SplitMix64`).
pub(crate) struct Draw {
    state: u64,
    /// The variables of each block that is open.
    scopes: Vec<Vec<String>>,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed, scopes: Vec::new() }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut drawn = self.state;
        drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (drawn ^ (drawn >> 31)) % limit
    }

    pub(crate) fn one_of<'w>(&mut self, words: &[&'w str]) -> &'w str {
        let at = self.below(words.len() as u64);
        usize::try_from(at).ok().and_then(|at| words.get(at)).copied().unwrap_or_default()
    }

    pub(crate) fn template(&mut self) -> String {
        self.scopes.clear();
        self.block(0)
    }

    fn block(&mut self, depth: u64) -> String {
        self.scopes.push(Vec::new());
        let mut text = String::new();
        for _ in 0..=self.below(3) {
            text += self.one_of(&["", " ", "a\n ", "\t}} ", " \u{a0}", "{ "]);
            text += &self.part(depth);
        }
        self.scopes.pop();
        text + self.one_of(&["", " ", "\n", "z"])
    }

    fn part(&mut self, depth: u64) -> String {
        match self.below(if depth < 3 { 8 } else { 6 }) {
            0 => "{{/* {{ comment */}}".to_owned(),
            1 | 2 => {
                let value = self.pipeline(0);
                self.action(&value)
            }
            3 | 4 => {
                let value = self.pipeline(0);
                let name = self.one_of(&["a", "b", "c_1"]).to_owned();
                let declare = self.action(&format!("${name} := {value}"));
                self.scopes.last_mut().expect("a block").push(name);
                declare
            }
            5 => match self.variable() {
                Some(name) => {
                    let value = self.pipeline(0);
                    self.action(&format!("${name} = {value}"))
                }
                None => "text".to_owned(),
            },
            _ => {
                let condition = self.pipeline(0);
                let mut text = self.action(&format!("if {condition}")) + &self.block(depth + 1);
                if self.below(3) == 0 {
                    let condition = self.pipeline(0);
                    text += &self.action(&format!("else if {condition}"));
                    text += &self.block(depth + 1);
                }
                if self.below(2) == 0 {
                    text += &self.action("else");
                    text += &self.block(depth + 1);
                }
                text + &self.action("end")
            }
        }
    }

    fn action(&mut self, words: &str) -> String {
        let (begin, end) = (self.one_of(&["{{ ", "{{", "{{- ", "{{-\n"]), self.one_of(&[" }}", "}}", " -}}", "\n}}"]));
        // A minus behind a word is part of it.
        format!("{begin}{words}{end}")
    }

    fn variable(&mut self) -> Option<String> {
        let known: Vec<String> = self.scopes.iter().flatten().cloned().collect();
        let at = self.below(known.len().max(1) as u64);
        known.get(usize::try_from(at).ok()?).cloned()
    }

    fn pipeline(&mut self, depth: u64) -> String {
        let mut text = self.command(depth, false);
        while self.below(8) == 0 {
            text += " | ";
            text += &self.command(depth, true);
        }
        text
    }

    fn command(&mut self, depth: u64, is_piped: bool) -> String {
        let given = u64::from(is_piped);
        let (name, least, most) = match self.below(if is_piped || depth < 2 { 12 } else { 8 }) {
            0 | 1 => ("eq", 2, 4),
            2 => ("ne", 2, 2),
            3 | 4 => ("and", 1, 3),
            5 | 6 => ("or", 1, 3),
            7 => ("not", 1, 1),
            8 => return self.printf(depth, is_piped),
            9 | 10 => {
                let function = self.one_of(&["fromCDLabel", "fromClusterLabel"]);
                let key = self.one_of(&["\"region\"", "\"env\"", "`empty`", "\"none\"", "(printf \"%s\" \"n\")"]);
                return if is_piped { function.to_owned() } else { format!("{function} {key}") };
            }
            _ if is_piped => ("not", 1, 1),
            _ => return self.operand(depth),
        };
        let count = (least + self.below(most - least + 1)).saturating_sub(given);
        let values: Vec<String> = (0..count).map(|_| format!(" {}", self.operand(depth))).collect();
        format!("{name}{}", values.concat())
    }

    fn printf(&mut self, depth: u64, is_piped: bool) -> String {
        let count = 1 + self.below(3);
        let mut format = String::new();
        for _ in 0..count {
            format += self.one_of(&["", "%%", "x ", "%5%"]);
            format.push('%');
            for _ in 0..self.below(3) {
                format += self.one_of(&["-", "+", "#", " ", "0"]);
            }
            format += self.one_of(&["", "", "1", "7", "12"]);
            format += self.one_of(&["", "", ".", ".0", ".2", ".9"]);
            format += self.one_of(&["s", "q", "d", "v"]);
        }
        let values: Vec<String> = (u64::from(is_piped)..count).map(|_| format!(" {}", self.operand(depth))).collect();
        format!("printf \"{format}\"{}", values.concat())
    }

    fn operand(&mut self, depth: u64) -> String {
        const LITERALS: [&str; 14] = [
            "\"\"",
            "\"prod\"",
            "\"eu-west\"",
            "\"ä\\n\\\"\"",
            "`a\\`",
            "0",
            "1",
            "-3",
            "+42",
            "true",
            "false",
            "\"7\"",
            "7",
            "\"\\x41\\u00e9\"",
        ];
        match self.below(if depth < 2 { 6 } else { 4 }) {
            0..=2 => self.one_of(&LITERALS).to_owned(),
            3 => match self.variable() {
                Some(name) => format!("${name}"),
                None => self.one_of(&LITERALS).to_owned(),
            },
            _ => format!("({})", self.pipeline(depth + 1)),
        }
    }
}

/// What may stand for a value, without quotes.
const PIECES: [&str; 40] = [
    "0",
    "0",
    "00",
    "1",
    "7",
    "8",
    "9",
    "12",
    "128",
    "255",
    "400",
    "0x",
    "0X",
    "0b",
    "0o",
    "0O",
    "1f",
    "F",
    "_",
    "_",
    "-",
    "+",
    ".",
    ".5",
    "e",
    "e3",
    "E+2",
    "e-7",
    "e400",
    "true",
    "yes",
    "y",
    "No",
    "off",
    "~",
    "null",
    ".inf",
    "9223372036854775807",
    "18446744073709551615",
    "2001-12-14",
];

impl Draw {
    /// A scalar without quotes, most often a number or nearly one.
    pub(crate) fn scalar(&mut self) -> String {
        let count = 1 + self.below(4);
        let scalar: String = (0..count).map(|_| self.one_of(&PIECES)).collect();
        // YAML 1.1 and 1.2 differ in where a lone dash may stand.
        if scalar == "-" { "-1".to_owned() } else { scalar }
    }

    /// A document of YAML with lists, objects, anchors and merges.
    pub(crate) fn document(&mut self) -> String {
        let anchors =
            ["a: &a {x: 1, 010: yes}", "a: &a\n  x: 0400\n  y: [1.0]", "a: &a [{x: 2}, {z: 0x1F}]", "a: &a 07"];
        let mut text = format!("{}\n", self.one_of(&anchors));
        for field in 0..=self.below(4) {
            let key = match self.below(4) {
                0 => self.scalar(),
                _ => format!("f{field}"),
            };
            let value = self.value(1);
            text.extend([key.as_str(), ":", &value, "\n"]);
        }
        text
    }

    /// What follows a colon: a value at a depth.
    fn value(&mut self, depth: usize) -> String {
        let indent = "  ".repeat(depth);
        match self.below(if depth < 4 { 12 } else { 7 }) {
            0 | 1 => format!(" {}", self.scalar()),
            2 => format!(" '{}'", self.scalar()),
            3 => format!(" \"{}\\n\"", self.scalar()),
            4 => " *a".to_owned(),
            5 => format!(" [{}, {{{}: *a}}, {}]", self.scalar(), self.scalar(), self.scalar()),
            6 => String::new(),
            7 => format!(" |\n{indent}{}\n{indent}---x", self.scalar()),
            8 => format!(" >-\n{indent}{}\n{indent}{}", self.scalar(), self.scalar()),
            9 | 10 => {
                let merge = self.one_of(&["<<: *a", "<<: {x: 7}", "<<: [*a, {x: 8}]", "z: 0"]).to_owned();
                let (first, second) = (self.value(depth + 1), self.value(depth + 1));
                if self.below(2) == 0 {
                    format!("\n{indent}{merge}\n{indent}x:{first}\n{indent}w:{second}")
                } else {
                    format!("\n{indent}x:{first}\n{indent}{merge}\n{indent}w:{second}")
                }
            }
            _ => {
                let (first, second) = (self.scalar(), self.value(depth + 1));
                format!(
                    "\n{indent}- {first}\n{indent}- k:{second}\n{indent}- k: 1\n{indent}  x:{}",
                    self.value(depth + 2)
                )
            }
        }
    }
}
